"""What a checkpointed module is repeated with: as if nothing had happened since its forward."""

# ruff: noqa: NPY002, S311 - these are the generators that models draw from
import random
import weakref

import numpy as np
import pytest
import torch
from layers import Layers, expect_same, trained, within
from torch import nn

import mm_runner.model._noted_tensors
from mm_runner import ConfigError
from mm_runner.model import apply_module_settings

KEY = "activation_checkpointing"


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


class Unset(Cast):
    """It is no number at first."""

    def __init__(self):
        super().__init__()
        self.scale.fill_(float("nan"))

    def between(self, hidden):
        self.scale.data.nan_to_num_(1.0)
        return super().between(hidden)


@pytest.mark.parametrize(
    "kind",
    [
        ReadsStatistics,
        Begins,
        LateByBuffer,
        CarriesGraph,
        Learned,
        Shares,
        Draws,
        ByMode,
        Cast,
        Unset,
    ],
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
    real = mm_runner.model._noted_tensors._copy
    monkeypatch.setattr(
        mm_runner.model._noted_tensors,
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


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_large_buffers_are_copied_once_whatever_is_in_them(monkeypatch, value):
    class Masks(Layers):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.full((1 << 17,), value))

    _, other = within(Masks())
    copied = []
    real = mm_runner.model._noted_tensors._copy
    monkeypatch.setattr(
        mm_runner.model._noted_tensors,
        "_copy",
        lambda tensor: (copied.append(tensor.numel()), real(tensor))[1],
    )
    for _ in range(3):
        other(torch.randn(8, 4)).sum().backward()
    assert copied.count(1 << 17) == 1


class Graph(nn.Module):
    """A layer over a graph, whose adjacency is a sparse buffer."""

    def __init__(self, layout, size):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        adjacency = torch.eye(size).to_sparse()
        self.register_buffer("adjacency", getattr(adjacency, layout)())

    def forward(self, inputs):
        return torch.tanh(self.adjacency @ self.layer(inputs))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", ["coalesce", "to_sparse_csr"])
@pytest.mark.parametrize("size", [8, 500])
def test_sparse_buffers_are_as_they_were(layout, size):
    found = []
    for names in (None, "0"):
        torch.manual_seed(0)
        model = nn.Sequential(Graph(layout, size), nn.Linear(4, 4))
        apply_module_settings(model, {KEY: names})
        for _ in range(2):
            model(torch.ones(size, 4)).square().sum().backward()
        found.append([one.grad for one in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_sparse_buffer_that_changes_before_a_later_backward_pass_is_refused():
    _, other = within(Graph("coalesce", 500))
    other(torch.ones(500, 4)).sum().backward()
    loss = other(torch.ones(500, 4)).sum()
    other[0].adjacency.mul_(2)
    # Within a RuntimeError before torch 2.
    with pytest.raises(
        (ConfigError, RuntimeError), match="'0' has a buffer, 'adjacency', of more than 65,536"
    ):
        loss.backward()


def test_buffers_that_were_made_in_inference_mode_count_no_changes():
    model, other = within(Layers())
    for one in (model, other):
        with torch.inference_mode():
            one[0].register_buffer("small", torch.ones(4))
            one[0].register_buffer("large", torch.ones(1 << 17))
    expect_same(model, other)


@pytest.mark.parametrize("size", [4, 1 << 17])
def test_forwards_without_a_backward_pass_keep_nothing(size):
    class Remembers(Layers):
        def __init__(self):
            super().__init__()
            self.register_buffer("memory", torch.zeros(size))

        def between(self, hidden):
            self.memory = 0.5 * self.memory.detach() + hidden.mean()
            return hidden + self.memory[:4].detach()

    _, other = within(Remembers())
    alive = []
    for _ in range(5):
        inputs = torch.randn(8, 4, requires_grad=True) * 1.0
        alive.append(weakref.ref(inputs))
        other(inputs)
        del inputs
    assert [reference() is not None for reference in alive] == [False] * 4 + [True]


def test_a_buffer_that_gets_a_graph_does_not_keep_it_alive():
    class Remembers(Layers):
        def __init__(self):
            super().__init__()
            self.register_buffer("memory", torch.zeros(4))

        def between(self, hidden):
            self.memory.copy_(hidden.mean(0))
            return hidden + self.memory

    _, other = within(Remembers())
    inputs = torch.randn(8, 4, requires_grad=True) * 1.0
    alive = weakref.ref(inputs)
    other(inputs)
    other[0].memory = torch.zeros(4)
    del inputs
    assert alive() is None


def test_a_layer_with_a_spectral_norm_may_be_called_twice_before_the_backward_pass():
    model, other = within(nn.utils.spectral_norm(nn.Linear(4, 4)))
    found = []
    for one in (model, other):
        torch.manual_seed(1)
        first, second = (torch.randn(8, 4, requires_grad=True) for _ in range(2))
        (one(first).square().sum() - one(second).square().sum()).backward()
        found.append([first.grad, second.grad, *[one.grad for one in one.parameters()]])
        found[-1].append(one[0].weight)
    torch.testing.assert_close(*found, rtol=0, atol=0)
