import subprocess
import sys

import mm_compile

PROBE = """
import os, sys
import torch
modules, environment = set(sys.modules), dict(os.environ)
import mm_compile
loaded = set(sys.modules) - modules
unwanted = ("mm_dist", "mm_amp", "mm_npu", "mm_runner", "numpy", "yaml", "torch")
print([name for name in sorted(loaded) if name.split(".")[0] in unwanted])
print(dict(os.environ) == environment)
"""


def test_importing_loads_and_changes_nothing():
    result = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True
    )
    assert result.stdout.split("\n")[:2] == ["[]", "True"]


def test_every_public_name_exists():
    assert dir(mm_compile) == sorted(mm_compile.__all__)
    assert all(hasattr(mm_compile, name) for name in mm_compile.__all__)
