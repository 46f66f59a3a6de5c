import json

_SCRIPT = """
import json, os, sys, time
import torch
modules, env = set(sys.modules), dict(os.environ)
start = time.perf_counter()
import mm_runner
seconds = time.perf_counter() - start
print(json.dumps([sorted(set(sys.modules) - modules), env == dict(os.environ), seconds]))
import mm_runner.runner
print(json.dumps([sorted(set(sys.modules) - modules), env == dict(os.environ)]))
"""


def test_import_loads_little_takes_no_time_and_changes_nothing(run_script):
    result = run_script(_SCRIPT)
    assert result.returncode == 0, result.stderr
    package, runner = map(json.loads, result.stdout.splitlines())
    tops = {name.partition(".")[0] for name in package[0]}
    assert not tops & {"rich", "yaml", "numpy", "mm_dist", "mm_amp", "mm_compile", "mm_npu"}
    assert package[1]
    assert package[2] < 0.1
    # The Runner itself needs YAML; the terminal's library and NumPy only when they are used.
    tops = {name.partition(".")[0] for name in runner[0]}
    assert not tops & {"rich", "numpy", "matplotlib", "mm_npu"}
    assert runner[1]
