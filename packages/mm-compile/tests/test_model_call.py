import pytest
import torch
from blocks import Stack
from toy import needs_compile
from wrapped import Accumulating

from mm_compile import compile_model

pytestmark = needs_compile


@pytest.mark.parametrize("regions", [None, "auto"])
def test_a_step_is_one_call_of_the_model_however_often_it_calls_a_block(backend, regions):
    model = Accumulating()
    handle = compile_model(model, {"backend": backend, "regions": regions, "disable": "auto"})
    handle.expect_steps(10)
    for _ in range(9):
        model(torch.randn(3, 4)).sum().backward()
    assert not handle.is_warm  # two steps settle, eight are timed
    for _ in range(3):
        model(torch.randn(3, 4)).sum().backward()
    assert handle.is_warm


def test_an_error_in_forward_ends_its_step(backend):
    model = Stack(2)
    handle = compile_model(model, {"backend": backend, "regions": "auto"})
    for _ in range(2):
        with pytest.raises((RuntimeError, TypeError)):
            model(torch.randn(3, 5))
    for _ in range(20):
        model(torch.randn(3, 4)).sum().backward()
    assert handle.is_warm
