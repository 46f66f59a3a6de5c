import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

_README = Path(__file__).parents[1] / "README.md"


def test_the_examples_of_the_readme_run_one_after_the_other(run_script):
    blocks = re.findall(
        r"^```python\n(.*?)^```", _README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert blocks, f"{_README.name} has no ```python block"
    result = run_script("\n".join(blocks))
    assert result.returncode == 0, result.stderr


_needs_sklearn = pytest.mark.skipif(
    find_spec("sklearn") is None or find_spec("matplotlib") is None, reason="the extra 'examples'"
)
_COMMANDS = (
    "import sys\nfrom mm_runner.cli import main\nfor line in {}:\n    assert main(line) == {}"
)


@_needs_sklearn
def test_the_commands_of_the_readme_run_as_they_stand(run_script, tmp_path):
    shutil.copytree(_README.parent / "examples", tmp_path / "examples")
    (block,) = re.findall(
        r"^```sh\n(mm-runner.*?)^```", _README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    lines = [shlex.split(line)[1:] for line in block.splitlines()]
    assert [line[0] for line in lines] == ["check", "train", "test", "plot"]
    result = run_script(_COMMANDS.format(lines, 0))
    assert result.returncode == 0, result.stderr
    assert "precision     bfloat16" in result.stdout
    assert "accuracy: " in result.stdout
    assert (tmp_path / "work_dirs" / "short" / "curves.png").exists()


@_needs_sklearn
def test_the_message_of_the_readme_is_what_is_said(run_script, tmp_path):
    shutil.copytree(_README.parent / "examples", tmp_path / "examples")
    (shown,) = re.findall(
        r"^(mm-runner: .*?), lr, \.\.\.", _README.read_text("utf-8"), re.MULTILINE
    )
    line = ["train", "examples/digits.yaml", "--cfg-options", "optim_wrapper.optimizer.lrr=1"]
    result = run_script(_COMMANDS.format([line], 1))
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith(shown)
