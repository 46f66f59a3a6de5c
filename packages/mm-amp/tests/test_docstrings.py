import doctest

import pytest
import torch

import mm_amp


@pytest.mark.parametrize("name", ["AmpOptimWrapper", "OptimWrapper", "autocast"])
def test_example_in_the_docstring_runs(name):
    examples = doctest.DocTestFinder(recurse=False).find(
        getattr(mm_amp, name), name, globs={"torch": torch, **vars(mm_amp)}
    )
    (example,) = examples
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
