import json
import subprocess
import sys
from importlib.metadata import entry_points, version

import mm_amp

_SCRIPT = """
import json, os, sys, time
import torch
sys.pycache_prefix, sys.dont_write_bytecode = sys.argv[1], False
modules, env = set(sys.modules), dict(os.environ)
start = time.process_time()
import mm_amp
seconds = time.process_time() - start
print(json.dumps([sorted(set(sys.modules) - modules), env == dict(os.environ), seconds]))
"""


def _import_in_new_process(bytecode_folder):
    output = subprocess.run(
        [sys.executable, "-c", _SCRIPT, bytecode_folder],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return json.loads(output)


def test_import_loads_little_and_changes_nothing(tmp_path):
    new_modules, is_env_same, _ = _import_in_new_process(tmp_path)
    unwanted = {"mm_runner", "mm_dist", "mm_compile", "mm_npu", "numpy", "yaml"}
    assert not unwanted & {name.partition(".")[0] for name in new_modules}
    assert "torch.distributed.fsdp" not in new_modules
    assert is_env_same


def test_import_costs_little_over_torch(tmp_path):
    # The first compiles, as pip does when it installs. Time of the processor, and the least of
    # several, since the machine may be shared.
    _import_in_new_process(tmp_path)
    assert min(_import_in_new_process(tmp_path)[2] for _ in range(4)) < 0.02


def test_dir_lists_the_public_names_only():
    assert set(dir(mm_amp)) == {*mm_amp.__all__, "__version__"}
    assert all(hasattr(mm_amp, name) for name in dir(mm_amp))
    assert mm_amp.__version__ == version("mm-amp")


def test_optim_wrappers_are_advertised_as_entry_points():
    found = {entry.name: entry for entry in entry_points(group="mm.optim_wrappers")}
    assert found["OptimWrapper"].load() is mm_amp.OptimWrapper
    assert found["AmpOptimWrapper"].load() is mm_amp.AmpOptimWrapper
