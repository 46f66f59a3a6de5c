import copy
import inspect
import pickle

import pytest
import torch
from toy import Toy, needs_compile

from mm_compile import compile_model
from mm_compile._install import CompiledMethod, install_method

pytestmark = needs_compile


def through_pickle(model):
    return pickle.loads(pickle.dumps(model))  # noqa: S301 - our own bytes


copied = pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])


def compile_forward(model, backend):
    compile_model(model, {"backend": backend})


def compile_forward_as_on_torch_2_0(model, backend):
    install_method(model, "forward", {"backend": backend})


ways = pytest.mark.parametrize("way", [compile_forward, compile_forward_as_on_torch_2_0])


@copied
@ways
def test_a_copy_computes_with_its_own_parameters(model, backend, copied, way):
    way(model, backend)
    model.eval()
    inputs = torch.randn(5, 4)
    compiled = model(inputs)
    twin = copied(model)
    assert list(twin.state_dict()) == list(Toy().state_dict())
    torch.testing.assert_close(twin(inputs), compiled)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(inputs).any()
    torch.testing.assert_close(model(inputs), compiled)


@copied
@ways
def test_a_copy_can_be_compiled_and_undone_itself(model, backend, copied, way):
    way(model, backend)
    twin = copied(model)
    handle = compile_model(twin, {"backend": backend})
    calls = backend.calls
    twin(torch.randn(5, 4))
    assert backend.calls == calls + 1
    handle.undo()
    twin(torch.randn(5, 4))
    assert backend.calls == calls + 1


@copied
def test_train_step_of_a_copy_trains_the_copy(model, backend, copied):
    compile_model(model, {"target": "train_step", "backend": backend})
    twin = copied(model)
    weight = model.first.weight.detach().clone()
    twin.train_step(torch.randn(5, 4), torch.optim.SGD(twin.parameters(), lr=0.1))
    assert torch.equal(model.first.weight, weight)
    assert not torch.equal(twin.first.weight, weight)


def test_the_way_of_torch_2_0_is_compiled_in_place_and_undone(model, backend):
    before = dict(vars(model))
    restore = install_method(model, "forward", {"backend": backend})
    assert isinstance(model.forward, CompiledMethod)
    assert list(inspect.signature(model.forward).parameters) == ["inputs", "mode"]
    model(torch.randn(5, 4))
    assert backend.calls == 1
    restore()
    assert vars(model) == before
