"""Checkpointed modules in compiled code, and arguments that are named as torch's own."""

import copy

import pytest
import torch
from torch import nn
from toy import needs_compile

from mm_runner.model import apply_module_settings


class Layers(nn.Module):
    """Two layers, with ``between`` applied to what lies between them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs):
        return self.last(torch.tanh(self.between(self.first(inputs))))

    def between(self, hidden):
        return hidden


def within(block, names="0"):
    torch.manual_seed(0)
    model = nn.Sequential(block, nn.Linear(4, 4))
    other = copy.deepcopy(model)
    apply_module_settings(other, {"activation_checkpointing": names})
    return model, other


class Options(Layers):
    """Its arguments are named as those of torch's function."""

    def forward(self, inputs, *, debug=False, use_reentrant=None, function=1, context_fn=None):
        assert (use_reentrant, context_fn) == (3, None)
        return super().forward(inputs) * (2.0 if debug else 1.0) * function


class Caller(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Options()

    def forward(self, inputs):
        return self.block(inputs, debug=True, use_reentrant=3, function=torch.tensor(2.0))


def compiled(model):
    torch._dynamo.reset()
    return torch.compile(model, backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize("wrap", [
    lambda model: model,
    pytest.param(compiled, marks=[needs_compile, pytest.mark.skipif(
        not hasattr(torch, "compiler"), reason="torch 2.0 cannot capture it"
    )]),
])  # fmt: skip
def test_arguments_may_have_any_name(wrap):
    model, other = within(Caller(), "0.block")
    inputs = torch.randn(8, 4)
    found = []
    for one in (model, wrap(other)):
        loss = one(inputs).square().sum()
        loss.backward()
        found.append(loss.detach())
    torch.testing.assert_close(*found)
    gradients = [[one.grad for one in net.parameters()] for net in (model, other)]
    torch.testing.assert_close(*gradients)


class Constant(Layers):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.full((4,), 0.5))

    def between(self, hidden):
        return self.norm(hidden) * self.mask


class Changes(Constant):
    def between(self, hidden):
        self.mask.mul_(0.5)
        return hidden + self.mask


@needs_compile
@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="torch 2.0 cannot capture it")
def test_compiled_buffers_that_change_are_refused_and_others_are_not():
    model, other = within(Constant())
    inputs = torch.randn(8, 4)
    for one in (model, compiled(other)):
        one(inputs).square().sum().backward()
    gradients = [[one.grad for one in net.parameters()] for net in (model, other)]
    torch.testing.assert_close(*gradients)
    _, other = within(Changes())
    with pytest.raises(Exception, match="activation_checkpointing: a module that it names changes"):
        compiled(other)(inputs)
    torch._dynamo.reset()


@needs_compile
@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="torch 2.0 cannot capture it")
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_compiled_is_repeated_from_what_it_was():
    class Assigns(Constant):
        def between(self, hidden):
            self.mask = self.mask * 0.5
            return hidden + self.mask

    model, other = within(Assigns())
    torch._dynamo.reset()
    wrapped = torch.compile(other, backend="aot_eager")
    inputs = torch.randn(8, 4)
    for _ in range(2):
        for one in (model, wrapped):
            one(inputs).square().sum().backward()
    torch._dynamo.reset()
    gradients = [[one.grad for one in net.parameters()] for net in (model, other)]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(dict(other.state_dict()), dict(model.state_dict()))
