import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

_README = Path(__file__).parents[1] / "README.md"
# Each example, with what it prints where the README shows that.
_BLOCKS = re.findall(
    r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?",
    _README.read_text(),
    re.DOTALL | re.MULTILINE,
)
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
_IS_TORCH_2 = hasattr(torch, "compile")
_HAS_STANCES = hasattr(getattr(torch, "compiler", None), "set_stance")
_CAN_SHARD_ON_CPU = hasattr(getattr(getattr(torch, "cpu", None), "Stream", None), "record_event")
_NEEDS = {
    "weights_only=True": (_IS_TORCH_2, "the safe loader of torch 1 cannot read floats"),
    "amp_receipt": (_HAS_STANCES, "a receipt needs torch 2.6"),
    "fully_shard": (_CAN_SHARD_ON_CPU, "sharding works on the CPU after torch 2.6"),
}


@pytest.mark.parametrize(("block", "shown"), _BLOCKS, ids=range(len(_BLOCKS)))
def test_readme_example_runs_as_it_stands(block, shown, tmp_path):
    for what, (is_there, reason) in _NEEDS.items():
        if what in block and not is_there:
            pytest.skip(reason)
    (tmp_path / "example.py").write_text(block)
    launcher = _TORCHRUN if "WORLD_SIZE" in block else ()
    # Said by torch 2.0 itself, whenever it saves or loads a tensor.
    warnings = "error,ignore:TypedStorage is deprecated:UserWarning"
    threads = os.environ.get("OMP_NUM_THREADS", "1")  # said here, torchrun need not warn
    result = subprocess.run(
        [sys.executable, *launcher, "example.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": warnings, "OMP_NUM_THREADS": threads},
    )
    assert result.returncode == 0, result.stderr
    if shown and torch.__version__.startswith("2.13."):  # a receipt differs a little between them
        assert result.stdout == shown
