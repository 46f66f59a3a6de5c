import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

_README = Path(__file__).parents[1] / "README.md"
_BLOCKS = re.findall(r"^```python\n(.*?)^```", _README.read_text(), re.DOTALL | re.MULTILINE)


def test_readme_has_examples():
    assert len(_BLOCKS) >= 4


@pytest.mark.parametrize("block", _BLOCKS, ids=range(len(_BLOCKS)))
def test_readme_example_runs_as_it_stands(block, tmp_path):
    if "weights_only=True" in block and not hasattr(torch, "compile"):
        pytest.skip("the safe loader of torch 1 cannot read floats")
    # Said by torch 2.0 itself, whenever it saves or loads a tensor.
    ignored = "ignore:TypedStorage is deprecated:UserWarning"
    command = [sys.executable, "-W", "error", "-W", ignored, "-c", block]
    subprocess.run(command, check=True, cwd=tmp_path)
