from importlib.util import find_spec

import pytest


@pytest.mark.parametrize("sibling", ["mm_dist", "mm_amp", "mm_compile", "mm_runner"])
def test_no_sibling_is_installed_here(sibling):
    assert find_spec(sibling) is None
