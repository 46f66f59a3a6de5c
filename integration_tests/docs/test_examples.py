"""The documents' examples run as they stand, and are the same in both languages.

A block of ``python`` is a script, in which ``Runner(..., more)`` stands for a whole small run. A
block that begins with a comment which is the name of a file, in any language, is that file: the
page's scripts may import it, and its commands find it. Blocks of ``sh`` are commands; each page's
run one after the other in one folder, with mm-runner's examples in it. A block of ``text`` below a
script or a command is what it prints, with a line ``...`` for what may be otherwise. Blocks of
``bash`` need more than a test has, such as a cluster, and are only shown, but for the installation.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pages import LANGUAGES, PAGES, ROOT, blocks_of, read_blocks, write_files

_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
# What two processes are needed for, which a script has to be started with.
_NEEDS_RANKS = re.compile(r"DataParallel\(|WORLD_SIZE|barrier\(")
# How a command begins what is the user's to repair, with status 1.
_REFUSED = "mm-runner: "
_COMMANDS = {"mm-runner": "mm_runner", "mm-dist": "mm_dist"}
_COMMANDS |= {"torchrun": "torch.distributed.run", "python": ""}
# Ray refuses a folder within an environment, which is where nox's temporary ones are, and puts a
# token of authentication into the user's directory.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAY_TMPDIR": "/tmp", "RAY_AUTH_MODE": "disabled"}
# Which is in the page's language.
_COMMENT = re.compile(r"(?m)\s+#\s.*$")

_SCRIPTS = [
    pytest.param(page, number, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(read_blocks("en", page))
    if block.is_script
]
_WITH_COMMANDS = [page for page in PAGES if any(one.is_command for one in read_blocks("en", page))]
_ON_FRONT_PAGE = [
    pytest.param(block, id=f"README.md-{number}")
    for number, block in enumerate(blocks_of((ROOT / "README.md").read_text(encoding="utf-8")))
    if block.is_script
]


def test_there_are_examples():
    assert len(_SCRIPTS) > 20
    assert len(_WITH_COMMANDS) > 2


@pytest.mark.parametrize(("page", "number"), _SCRIPTS)
def test_example_runs(page, number, tmp_path):
    blocks = read_blocks("en", page)
    script = blocks[number]
    write_files(blocks[:number], tmp_path)
    text = script.text
    if "Runner(..." in "".join(text.split()):
        shutil.copy(Path(__file__).with_name("small_run.py"), tmp_path)
        text = f"from small_run import Runner\n{text}runner.train()\n"
    assert_runs(text, script.shown, tmp_path)


@pytest.mark.parametrize("script", _ON_FRONT_PAGE)
def test_example_of_the_front_page_runs(script, tmp_path):
    assert_runs(script.text, script.shown, tmp_path)


@pytest.mark.parametrize("page", _WITH_COMMANDS)
def test_commands_run_in_the_order_of_the_page(page, tmp_path):
    pytest.importorskip("sklearn")
    shutil.copytree(ROOT / "packages" / "mm-runner" / "examples", tmp_path / "examples")
    (tmp_path / "benchmarks").symlink_to(ROOT / "integration_tests" / "benchmarks")
    path = f"{make_commands(tmp_path / '.bin')}{os.pathsep}{os.environ['PATH']}"
    for block in read_blocks("en", page):
        write_files([block], tmp_path)
        if block.is_command:
            status, printed = run(["bash", "-e", "-c", block.text], tmp_path, PATH=path)
            assert status == block.shown.startswith(_REFUSED), block.text + printed
            assert_shown(block.shown, printed)


def test_installation(tmp_path):
    """In a clone, with the installed torch, which would take long to download."""
    ignored = shutil.ignore_patterns(".*", "dist", "integration_tests")
    shutil.copytree(ROOT, tmp_path / "clone", ignore=ignored)
    lines = [
        block.text
        for page in ("start.md", "predict_and_export.md")
        for block in read_blocks("en", page)
        if block.language == "bash"
    ]
    status, printed = run(
        ["bash", "-e", "-c", "".join([*lines, "mm-runner check examples/digits.yaml"])],
        tmp_path / "clone",
        PYTHONPATH=str(Path(torch.__file__).parents[1]),
    )
    assert status == 0, printed
    assert "DigitsResNet" in printed


@pytest.mark.parametrize("page", PAGES)
def test_languages_show_the_same_examples(page):
    english, chinese = (
        [
            (block.language, as_compared(block), block.shown)
            for block in read_blocks(language, page)
            if block.language != "bash"  # words that stand for values are in the page's language
        ]
        for language in LANGUAGES
    )
    assert english == chinese


def assert_runs(text, shown, folder):
    (folder / "example.py").write_text(text, encoding="utf-8")
    launcher = _TORCHRUN if _NEEDS_RANKS.search(text) else ()
    warnings = "default" if "import ray" in text else "error"  # Ray warns of itself
    command = [sys.executable, *launcher, "example.py"]
    status, printed = run(command, folder, PYTHONWARNINGS=warnings)
    assert status == 0, printed
    assert_shown(shown, printed)


def run(command, folder, **environment):
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **_ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout


def make_commands(folder):
    """Make the commands of the pages, which the environment need not have under their names."""
    folder.mkdir()
    for name, module in _COMMANDS.items():
        arguments = f"-m {module} " if module else ""
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        (folder / name).chmod(0o755)
    return folder


def assert_shown(shown, printed):
    """Check that the pieces of ``shown`` stand in ``printed``, in this order."""
    rest = printed
    for piece in filter(None, map(str.strip, re.split(r"(?m)^\.\.\.$", shown))):
        _, found, rest = rest.partition(piece)
        assert found, f"{piece}\n\nis not, or not in this order, in\n\n{printed}"


def as_compared(block):
    """Return what is the same in every language: all but comments."""
    if block.language == "python":
        return ast.dump(ast.parse(block.text))
    return _COMMENT.sub("", block.text)
