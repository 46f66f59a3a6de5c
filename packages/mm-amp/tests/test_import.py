import json
import subprocess
import sys
from importlib.metadata import entry_points, version

import mm_amp

_SCRIPT = """
import json, os, sys
import torch
modules, env = set(sys.modules), dict(os.environ)
import mm_amp
print(json.dumps([sorted(set(sys.modules) - modules), env == dict(os.environ)]))
"""


def test_import_loads_little_and_changes_nothing():
    output = subprocess.run(
        [sys.executable, "-c", _SCRIPT], check=True, capture_output=True, text=True
    ).stdout
    new_modules, is_env_same = json.loads(output)
    unwanted = {"mm_runner", "mm_dist", "mm_compile", "mm_npu", "numpy", "yaml"}
    assert not unwanted & {name.partition(".")[0] for name in new_modules}
    assert "torch.distributed.fsdp" not in new_modules
    assert is_env_same


def test_dir_lists_the_public_names_only():
    assert set(dir(mm_amp)) == {*mm_amp.__all__, "__version__"}
    assert all(hasattr(mm_amp, name) for name in dir(mm_amp))
    assert mm_amp.__version__ == version("mm-amp")


def test_optim_wrappers_are_advertised_as_entry_points():
    found = {entry.name: entry for entry in entry_points(group="mm.optim_wrappers")}
    assert found["OptimWrapper"].load() is mm_amp.OptimWrapper
    assert found["AmpOptimWrapper"].load() is mm_amp.AmpOptimWrapper
