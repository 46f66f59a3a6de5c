import json

_SCRIPT = """
import json, os, sys
import torch
modules, env = set(sys.modules), dict(os.environ)
import mm_runner
print(json.dumps([sorted(set(sys.modules) - modules), env == dict(os.environ)]))
mm_runner.Config
print(json.dumps([sorted(set(sys.modules) - modules), env == dict(os.environ)]))
import mm_runner.runner
print(json.dumps([sorted(set(sys.modules) - modules), env == dict(os.environ)]))
"""


def test_import_loads_little_and_changes_nothing(run_script):
    result = run_script(_SCRIPT)
    assert result.returncode == 0, result.stderr
    package, config, runner = map(json.loads, result.stdout.splitlines())
    assert [name for name in package[0] if name.startswith("mm_")] == [
        "mm_runner",
        "mm_runner._lazy",
        "mm_runner.errors",
    ]
    for loaded, is_unchanged in (package, config):
        tops = {name.partition(".")[0] for name in loaded}
        assert not tops & {"rich", "yaml", "numpy", "mm_dist", "mm_amp", "mm_compile", "mm_npu"}
        assert is_unchanged
    # The Runner needs YAML, the terminal's library and NumPy only when they are used.
    tops = {name.partition(".")[0] for name in runner[0]}
    assert not tops & {"rich", "yaml", "numpy", "matplotlib", "mm_compile", "mm_npu"}
    assert runner[1]
