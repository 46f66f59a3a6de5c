"""Checkpointed modules in compiled code, and arguments that are named as torch's own."""

import pytest
import torch
from blocks import SINCE_2_6
from layers import Layers, within
from torch import nn
from toy import needs_compile

from mm_runner.model._compiled_buffers import _own_forward

# Of inductor's own, which some backends import.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")


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
    # Of those that generate no code, the one that knows of checkpointing.
    return torch.compile(model, backend="aot_eager_decomp_partition", fullgraph=True)


@pytest.mark.parametrize("wrap", [
    lambda model: model,
    pytest.param(compiled, marks=[needs_compile, pytest.mark.skipif(
        not SINCE_2_6, reason="torch before 2.6 cannot guard an argument that is left out"
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


in_graphs = pytest.mark.skipif(not SINCE_2_6, reason="graphs show it since torch 2.6")


class OwnNorm(nn.BatchNorm1d):
    """Normalises by what it changes first."""

    def forward(self, inputs):
        if self.training:
            with torch.no_grad():
                self.running_var.lerp_(inputs.var(0), 0.5)
        return inputs * torch.rsqrt(self.running_var + self.eps)


class WarmsUp(nn.BatchNorm1d):
    def forward(self, inputs):
        return super().forward(inputs) / self.num_batches_tracked


class InFullPrecision(nn.BatchNorm1d):
    def forward(self, inputs):
        return super().forward(inputs.float()).to(inputs.dtype)


class Normalised(Layers):
    def __init__(self, kind, *, reads=False):
        super().__init__()
        self.norm, self.reads = kind(4), reads

    def between(self, hidden):
        normalised = self.norm(hidden)
        return normalised * torch.sqrt(self.norm.running_var) if self.reads else normalised


@needs_compile
@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="torch 2.0 cannot capture it")
@pytest.mark.parametrize(
    ("block", "message"),
    [
        (lambda: Normalised(OwnNorm), "changes a buffer in the forward of its OwnNorm"),
        pytest.param(
            lambda: Normalised(nn.BatchNorm1d, reads=True),
            "computes with statistics that a normalisation",
            marks=in_graphs,
        ),
        pytest.param(
            lambda: Normalised(WarmsUp),
            "computes with a count that the forward of its WarmsUp",
            marks=in_graphs,
        ),
    ],
)
def test_compiled_statistics_that_are_computed_with_are_refused(block, message):
    _, other = within(block())
    with pytest.raises(Exception, match=f"checkpointing: a module that it names {message}"):
        compiled(other)(torch.randn(8, 4))
    torch._dynamo.reset()


@needs_compile
@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="torch 2.0 cannot capture it")
@pytest.mark.parametrize(
    ("block", "training"),
    [
        (lambda: Normalised(nn.BatchNorm1d), True),
        (lambda: Normalised(InFullPrecision), True),
        (lambda: Normalised(nn.BatchNorm1d, reads=True), False),
        (lambda: Normalised(OwnNorm), False),
    ],
)
def test_compiled_statistics_that_only_change_or_are_only_read_are_none_of_its_business(
    block, training
):
    model, other = within(block())
    inputs = torch.randn(8, 4)
    for one in (model.train(training), compiled(other.train(training))):
        one(inputs).square().sum().backward()
    torch._dynamo.reset()
    gradients = [[one.grad for one in net.parameters()] for net in (model, other)]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(dict(other.state_dict()), dict(model.state_dict()))


def test_what_a_checkpointed_class_computes_is_what_its_own_says():
    _, other = within(nn.Sequential(nn.BatchNorm1d(4), OwnNorm(4)), ["0.0", "0.1"])
    found = [_own_forward(type(one)) for one in other[0]]
    assert found == [nn.BatchNorm1d.forward, OwnNorm.forward]
