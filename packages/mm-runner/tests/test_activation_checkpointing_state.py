"""What a checkpointed module is repeated with: as if nothing had happened since its forward."""

# ruff: noqa: NPY002, S311 - these are the generators that models draw from
import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

import mm_runner.model._kept_buffers
from mm_runner import ConfigError
from mm_runner.model import apply_module_settings

KEY = "activation_checkpointing"


class Layers(nn.Module):
    """Two layers, with ``between`` applied to what lies between them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs):
        return self.last(torch.tanh(self.between(self.first(inputs))))

    def between(self, hidden):
        return hidden


class ReadsStatistics(Layers):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def between(self, hidden):
        return self.norm(hidden) * torch.sqrt(self.norm.running_var + 1e-5)


class Begins(Layers):
    """Has no buffer at first, and registers another in its forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", None)

    def between(self, hidden):
        now = hidden.detach().mean(0)
        self.mean = now if self.mean is None else 0.9 * self.mean + 0.1 * now
        if not hasattr(self, "scale"):
            self.register_buffer("scale", torch.full((), 0.5))
            return hidden - self.mean
        return self.scale * (hidden - self.mean)


class Late(Layers):
    """Changes a buffer when it is late."""

    def __init__(self, size=1):
        super().__init__()
        self.is_late = False
        self.register_buffer("scale", torch.ones(size))

    def between(self, hidden):
        if self.is_late:
            self.scale.mul_(1.5)
        return hidden * self.scale[0].clone()


class LateByBuffer(Layers):
    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.ones(()))

    def between(self, hidden):
        self.step += 1
        if self.step > 1:
            self.scale *= 1.5
        return hidden * self.scale.clone()


class CarriesGraph(Layers):
    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(4))

    def between(self, hidden):
        self.memory = 0.5 * self.memory.detach() + hidden.mean(0)
        return hidden + self.memory


class Writes(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.register_buffer("scale", scale)

    def forward(self, inputs):
        self.scale.mul_(1.5)
        return inputs


class Learned(Layers):
    """A buffer that gets gradients."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(4, requires_grad=True))

    def between(self, hidden):
        return hidden * self.scale


class Shares(Layers):
    """One part changes the buffer that another reads."""

    def __init__(self):
        super().__init__()
        self.writes = Writes(torch.ones(()))
        self.register_buffer("scale", self.writes.scale)

    def between(self, hidden):
        return self.writes(hidden) * self.scale.clone()


class Draws(Layers):
    def between(self, hidden):
        return hidden * (1 + random.random()) * float(np.random.rand())


class ByMode(Layers):
    def __init__(self):
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def between(self, hidden):
        return self.dropout(self.norm(hidden)) * (2.0 if self.training else 1.0)


class Cast(Layers):
    """A large buffer that never changes beside one that does, uncounted."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(1 << 17))
        self.register_buffer("scale", torch.ones(1 << 17))

    def between(self, hidden):
        self.scale.data.mul_(1.5)
        return hidden * self.scale[0].clone() * self.mask[0]


def within(block, names="0"):
    torch.manual_seed(0)
    model = nn.Sequential(block, nn.Linear(4, 4))
    other = copy.deepcopy(model)
    apply_module_settings(other, {KEY: names})
    return model, other


def trained(model, between=nn.Module.train, steps=3):
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    found = []
    for _ in range(steps):
        model.train().requires_grad_()
        optimizer.zero_grad()
        inputs = torch.randn(8, 4, requires_grad=True)
        loss = model(inputs * 1.0).square().sum()
        between(model)
        found += [random.random(), np.random.rand()]
        loss.backward()
        found += [loss.detach(), inputs.grad]
        optimizer.step()
    found += [parameter.grad for parameter in model.parameters()]
    return [*found, *model.state_dict().values(), random.random(), np.random.rand(), torch.rand(1)]


def expect_same(model, other, **options):
    torch.testing.assert_close(trained(other, **options), trained(model, **options), rtol=0, atol=0)


@pytest.mark.parametrize(
    "kind",
    [ReadsStatistics, Begins, LateByBuffer, CarriesGraph, Learned, Shares, Draws, ByMode, Cast],
)
def test_a_repetition_begins_with_what_the_forward_began_with(kind):
    expect_same(*within(kind()))


def test_a_convolution_that_is_trained_for_quantisation_is_the_same():
    quantization = pytest.importorskip("torch.ao.quantization")
    qat = pytest.importorskip("torch.ao.nn.intrinsic.qat")
    layer = qat.ConvBn1d(4, 4, 1, qconfig=quantization.get_default_qat_qconfig("fbgemm"))
    layer.bn.running_var.fill_(3.0)
    block = nn.Sequential(nn.Unflatten(1, (4, 1)), layer, nn.Flatten())
    expect_same(*within(block))


@pytest.mark.parametrize(
    "between",
    [
        nn.Module.eval,
        lambda model: model[0].dropout.eval(),
        lambda model: model[0].requires_grad_(requires_grad=False),
    ],
)
def test_what_is_switched_between_forward_and_backward_is_as_it_was_and_stays(between):
    model, other = within(ByMode())
    expect_same(model, other, between=between, steps=1)
    modes = [module.training for module in model.modules()]
    assert [module.training for module in other.modules()] == modes
    assert [one.requires_grad for one in other.parameters()] == [
        one.requires_grad for one in model.parameters()
    ]


def test_a_pass_in_each_mode_and_one_backward_pass():
    found = []
    for model in within(ByMode()):
        torch.manual_seed(1)
        inputs = torch.randn(8, 4)
        first = model(inputs).square().sum()
        second = model.eval()(2 * inputs).sum()
        first.backward()
        model.train()
        second.backward()
        found.append([one.grad for one in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_large_buffer_that_is_changed_late_is_refused():
    _, other = within(Late(size=1 << 17))
    trained(other)
    other[0].is_late = True
    with pytest.raises(ConfigError, match=r"'0' changed its buffer 'scale', which it had not"):
        trained(other)


@pytest.mark.parametrize("training", [True, False])
def test_large_buffers_that_do_not_change_are_copied_once(monkeypatch, training):
    _, other = within(Cast())
    other.train(training)
    copied = []
    real = mm_runner.model._kept_buffers._copy
    monkeypatch.setattr(
        mm_runner.model._kept_buffers,
        "_copy",
        lambda tensor: (copied.append(tensor.data_ptr()), real(tensor))[1],
    )
    for _ in range(3):
        other(torch.randn(8, 4)).sum().backward()
    block = other[0]
    assert copied.count(block.mask.data_ptr()) == 1
    assert copied.count(block.scale.data_ptr()) == 3


def test_what_is_known_of_a_module_ends_with_its_run():
    _, other = within(Cast())
    trained(other)
    apply_module_settings(other, {})
    assert not any("known" in name for name in vars(other[0]))


class Renorms(Layers):
    """The weight that comes first changes in the forward, to the same values again."""

    def __init__(self):
        super().__init__()
        self.first = nn.Embedding(8, 4, max_norm=0.5)

    def forward(self, inputs):
        return super().forward(torch.arange(8)) + 0 * inputs


def test_a_weight_that_a_forward_rescales_to_a_norm_may_come_first():
    model, other = within(Renorms())
    torch.testing.assert_close(trained(other), trained(model))


class Codebook(Layers):
    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.ones(4), requires_grad=False)

    def between(self, hidden):
        with torch.no_grad():
            self.codes.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        return hidden * self.codes.clone()


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Codebook, r"'0' changes 'codes', a parameter without gradients.*register_buffer"),
        (lambda: nn.Sequential(nn.LeakyReLU(0.2, inplace=True), nn.Linear(4, 4)),
         r"'0' changes one of its inputs in place.*inplace=False"),
    ],
)  # fmt: skip
def test_what_cannot_be_repeated_is_refused_in_the_first_step(block, message):
    _, other = within(block())
    with pytest.raises(ConfigError, match=f"^activation_checkpointing: {message}"):
        other(torch.randn(8, 4) * torch.ones(4, requires_grad=True))


def test_inputs_within_lists_are_watched_too():
    class Adds(Layers):
        def forward(self, inputs, *, memory):
            memory[0].add_(1)
            return super().forward(inputs) + memory[0].clone()

    _, other = within(Adds())
    with pytest.raises(ConfigError, match="changes one of its inputs in place"):
        other[0](torch.randn(8, 4), memory=[torch.zeros(4)])


def test_other_parameters_in_the_backward_pass_are_refused():
    func = pytest.importorskip("torch.func")
    _, other = within(Layers())
    doubled = {name: one.detach() * 2 for name, one in other.named_parameters()}
    doubled = {name: one.requires_grad_() for name, one in doubled.items()}
    loss = func.functional_call(other, doubled, torch.randn(8, 4)).sum()
    with pytest.raises(ConfigError, match=r"'0' has another 'first\.weight' in the backward pass"):
        loss.backward()


def test_a_parameter_that_was_changed_before_the_backward_pass_is_refused():
    _, other = within(Layers())
    loss = other(torch.randn(8, 4)).sum()
    with torch.no_grad():
        other[0].first.weight.mul_(2)
    # Within a RuntimeError before torch 2.
    with pytest.raises((ConfigError, RuntimeError), match=r"'first\.weight', that was changed"):
        loss.backward()
