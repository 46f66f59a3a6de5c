import json

SOURCE = """
import json, os, sys
import torch
modules, variables = set(sys.modules), dict(os.environ)
import mm_dist
print(json.dumps([sorted(set(sys.modules) - modules), dict(os.environ) == variables]))
"""
# Beside itself and the standard library, it may import nothing that torch has not.
FOREIGN = ("numpy", "yaml", "mm_amp", "mm_compile", "mm_npu", "mm_runner", "torch_npu")


def test_importing_has_no_effects(run_script):
    result = run_script(SOURCE)
    assert not result.stderr
    added, is_environment_same = json.loads(result.stdout)
    assert not [name for name in added if name.split(".")[0] in FOREIGN]
    assert not [name for name in added if name.startswith("torch.")]
    assert is_environment_same
