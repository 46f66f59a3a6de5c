from importlib.util import find_spec

import pytest


@pytest.mark.parametrize("sibling", ["mm_amp", "mm_compile", "mm_npu", "mm_runner"])
def test_package_is_tested_without_its_siblings(sibling):
    assert find_spec(sibling) is None, f"run these tests where {sibling} is not installed"
