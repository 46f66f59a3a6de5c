"""A switch of CUDA's that is read on every machine."""

import pytest
import torch

from mm_runner._torch_private import uses_tf32

MATMUL = torch.backends.cuda.matmul
HAS_NEWER = torch.__version__ >= "2.9"


@pytest.fixture(autouse=True)
def switch_back():
    yield
    MATMUL.allow_tf32 = False
    if HAS_NEWER:
        MATMUL.fp32_precision = "none"


def test_the_older_switch_is_read():
    for is_on in (True, False):
        MATMUL.allow_tf32 = is_on
        assert uses_tf32() is is_on


@pytest.mark.skipif(not HAS_NEWER, reason="torch before 2.9 has one switch")
def test_the_newer_switch_is_read_where_asking_for_the_older_is_an_error():
    MATMUL.fp32_precision = "tf32"
    assert uses_tf32()
    MATMUL.fp32_precision = "ieee"
    assert not uses_tf32()
