"""The documents' examples run as they stand, and are the same in both languages."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_DOCS = Path(__file__).parents[2] / "docs"
_PAGES = sorted(path.name for path in (_DOCS / "en").glob("*.md"))
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
# What two processes are needed for, which a script has to be started with.
_NEEDS_RANKS = re.compile(r"DataParallel\(|WORLD_SIZE|barrier\(")
_PRINTED = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)


def read_examples(language, page):
    """Return each example of a page with what it prints, empty where that is not shown."""
    return _PRINTED.findall((_DOCS / language / page).read_text(encoding="utf-8"))


def is_script(example):
    """Tell a whole script from a few lines that only show how a call is written."""
    return "import" in example


_SCRIPTS = [
    pytest.param(example, shown, id=f"{page}-{number}")
    for page in _PAGES
    for number, (example, shown) in enumerate(read_examples("en", page))
    if is_script(example)
]


def test_there_are_examples():
    assert len(_SCRIPTS) > 10


@pytest.mark.parametrize(("example", "shown"), _SCRIPTS)
def test_example_runs(example, shown, tmp_path):
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    launcher = _TORCHRUN if _NEEDS_RANKS.search(example) else ()
    done = subprocess.run(
        [sys.executable, *launcher, "example.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown in done.stderr + done.stdout


@pytest.mark.parametrize("page", _PAGES)
def test_languages_show_the_same_examples(page):
    trees = [
        [ast.dump(ast.parse(example)) for example, _ in read_examples(language, page)]
        for language in ("en", "zh_cn")
    ]
    assert trees[0] == trees[1]
