import copy
import pickle
import pickletools

import pytest
import torch
from blocks import Stack
from toy import needs_compile
from wrapped import Accumulating

from mm_compile import compile_model

pytestmark = needs_compile
# measure=3 has two steps that settle, three that are timed, and then compiles.
FIRST = 2 + 3 + 1


def first_compiled(backend, step):
    """Return the number of the first step that runs compiled code."""
    for number in range(1, 20):
        step()
        if backend.calls:
            return number
    return None


@pytest.mark.parametrize("regions", [None, "auto"])
def test_a_step_is_one_call_of_the_model_however_often_it_calls_a_block(backend, regions):
    model = Accumulating()
    compile_model(model, {"backend": backend, "regions": regions, "measure": 3})
    inputs = torch.randn(3, 4)
    assert first_compiled(backend, lambda: model(inputs).sum().backward()) == FIRST


def test_calls_of_a_block_count_where_the_forward_of_the_model_is_left_out(backend):
    model = Stack(2)
    compile_model(model, {"backend": backend, "regions": "auto", "measure": 3})

    def step():
        first, second = model.blocks
        second(first(torch.randn(3, 4))).sum().backward()

    assert first_compiled(backend, step) == FIRST


def test_an_error_in_forward_ends_its_step(backend):
    model = Stack(2)
    handle = compile_model(model, {"backend": backend, "regions": "auto", "measure": 3})
    for _ in range(2):
        with pytest.raises((RuntimeError, TypeError)):
            model(torch.randn(3, 5))
    assert first_compiled(backend, lambda: model(torch.randn(3, 4))) == FIRST - 2
    assert handle.enabled


def test_copies_and_pickles_of_a_model_with_regions_are_plain(backend):
    model = Stack(2)
    before = [dict(vars(module)) for module in model.modules()]
    handle = compile_model(model, {"backend": backend, "regions": "auto"})
    names = [str(argument) for _, argument, _ in pickletools.genops(pickle.dumps(model))]
    assert not any("mm_compile" in name for name in names)
    inputs = torch.randn(3, 4)
    outputs, calls = model(inputs), backend.calls
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(twin(inputs), outputs)
    assert backend.calls == calls
    handle.undo()
    assert [dict(vars(module)) for module in model.modules()] == before
