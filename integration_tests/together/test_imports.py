"""Importing one package loads nothing of the others, though all are installed."""

import json

import pytest

SIBLINGS = {"mm_amp", "mm_compile", "mm_dist", "mm_npu", "mm_runner"}

PROGRAM = """
import json, sys
import torch
before = set(sys.modules)
import {module}
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
"""


@pytest.mark.parametrize("module", ["mm_amp", "mm_compile", "mm_dist", "mm_npu"])
def test_import_loads_no_sibling_no_numpy_and_no_yaml(module, run_python):
    loaded = set(json.loads(run_python("-c", PROGRAM.format(module=module)).stdout))
    assert module in loaded
    assert not loaded & ((SIBLINGS - {module}) | {"numpy", "yaml", "rich"})


def test_import_of_the_runner_package_loads_neither_yaml_nor_rich(run_python):
    loaded = set(json.loads(run_python("-c", PROGRAM.format(module="mm_runner")).stdout))
    assert not loaded & {"yaml", "rich", "matplotlib", "sklearn"}
