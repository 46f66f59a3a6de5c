import subprocess
import sys
from importlib.metadata import entry_points

import mm_npu

PROBE = """
import os, sys
import torch
modules, environment = set(sys.modules), dict(os.environ)
import mm_npu
loaded = set(sys.modules) - modules
unwanted = (
    "mm_dist", "mm_amp", "mm_compile", "mm_runner", "numpy", "yaml", "torch", "torch_npu"
)
print([name for name in sorted(loaded) if name.split(".")[0] in unwanted])
print(dict(os.environ) == environment)
"""


def test_importing_loads_and_changes_nothing():
    result = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True
    )
    assert result.stdout.split("\n")[:2] == ["[]", "True"]


def test_every_public_name_exists():
    assert dir(mm_npu) == sorted(mm_npu.__all__)
    assert all(hasattr(mm_npu, name) for name in mm_npu.__all__)


def test_configs_find_the_nine_optimizers_by_their_entry_points():
    names = {name for name in mm_npu.__all__ if name.startswith("NpuFused")}
    assert len(names) == 9
    ours = [e for e in entry_points(group="mm.optimizers") if e.name.startswith("NpuFused")]
    assert {entry.name for entry in ours} == names
    assert all(entry.load() is getattr(mm_npu, entry.name) for entry in ours)
