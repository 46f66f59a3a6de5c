import doctest

import pytest
import torch

import mm_amp


@pytest.mark.parametrize(
    "name",
    [
        "AmpOptimWrapper",
        "OptimWrapper",
        "OptimWrapperDict",
        "add_fp32_islands",
        "amp_receipt",
        "autocast",
        "detect_anomalous_params",
    ],
)
def test_example_in_the_docstring_runs(name):
    if name == "amp_receipt" and not hasattr(torch, "compile"):
        pytest.skip("a receipt needs torch 2.0")
    examples = doctest.DocTestFinder(recurse=False).find(
        getattr(mm_amp, name), name, globs={"torch": torch, **vars(mm_amp)}
    )
    (example,) = examples
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
