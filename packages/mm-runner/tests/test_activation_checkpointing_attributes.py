"""Plain attributes of a checkpointed module: as its forward began with, and changed once."""

import enum
from collections import deque

import numpy as np
import pytest
import torch
from blocks import SHARDS
from layers import Layers, copies_of, expect_same, trained, within
from torch import nn

import mm_runner.model._kept_parameters
from mm_runner import ConfigError
from mm_runner.model import apply_module_settings


class Rotary(Layers):
    """A table in a buffer, which is filled as far as it was needed."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(8))
        self.filled = 0

    def between(self, hidden):
        if self.filled < 4:
            self.table[self.filled : 4] = torch.arange(self.filled, 4.0)
            self.filled = 4
        return hidden * self.table[:4].clone()


class Counts(Layers):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def between(self, hidden):
        self.calls += 1
        return hidden * self.calls


class CountsWithin(Layers):
    def __init__(self):
        super().__init__()
        self.count = Counts()

    def between(self, hidden):
        return self.count(hidden)


class Alternates(Layers):
    def __init__(self):
        super().__init__()
        self.name = "tanh"

    def between(self, hidden):
        self.name = "relu" if self.name == "tanh" else "tanh"
        return getattr(torch, self.name)(hidden)


class Phase(enum.Enum):
    FIRST = 1
    SECOND = 2


class Switches(Layers):
    """Has members of an Enum, and tuples within tuples."""

    def __init__(self):
        super().__init__()
        self.phase, self.sizes = Phase.FIRST, ((1, Phase.FIRST), (2,))

    def between(self, hidden):
        hidden = hidden * self.phase.value * self.sizes[0][0]
        self.phase = Phase.SECOND if self.phase is Phase.FIRST else Phase.FIRST
        self.sizes = ((self.sizes[0][0] + 1, self.phase), (2,))
        return hidden


class Fills(Layers):
    """Computes a table for a shape once."""

    def __init__(self):
        super().__init__()
        self.shape, self.scale = (0, 0), None

    def between(self, hidden):
        if self.shape != tuple(hidden.shape):
            self.shape, self.scale = tuple(hidden.shape), hidden.detach().mean(0)
        return hidden * self.scale


class Adds(Layers):
    """Has an attribute only after its first forward."""

    def between(self, hidden):
        if not hasattr(self, "factor"):
            self.factor = 0.5
            return hidden
        return hidden * self.factor


class Removes(Layers):
    def __init__(self):
        super().__init__()
        self.factor = 0.5

    def between(self, hidden):
        return hidden * getattr(self, "factor", 1.0)

    def forward(self, inputs):
        outputs = super().forward(inputs)
        vars(self).pop("factor", None)  # the repetition may end before
        return outputs


class Registers(Layers):
    """What was None is a buffer from the first forward on."""

    def __init__(self):
        super().__init__()
        self.scale = None

    def between(self, hidden):
        if self.scale is None:
            del self.scale
            self.register_buffer("scale", torch.full((), 0.5))
            return hidden
        return hidden * self.scale


class Learns(Layers):
    """What was None is a parameter from the first forward on."""

    def __init__(self):
        super().__init__()
        self.scale = None

    def between(self, hidden):
        if self.scale is None:
            del self.scale
            self.scale = nn.Parameter(torch.full((), 0.5))
        return hidden * self.scale


class Anneals(Layers):
    """A temperature that is a number of NumPy's."""

    def __init__(self):
        super().__init__()
        self.temperature = np.float32(2.0)
        self.steps = np.int64(0)

    def between(self, hidden):
        self.temperature = np.maximum(self.temperature * np.float32(0.5), np.float32(0.1))
        self.steps += 1
        return hidden / float(self.temperature) + int(self.steps)


def plain(model):
    kinds = (bool, int, float, str, tuple, type(None))
    return [
        {name: value for name, value in vars(part).items() if isinstance(value, kinds)}
        for part in model.modules()
    ]


@pytest.mark.parametrize(
    "kind",
    [
        *[Rotary, Counts, CountsWithin, Alternates, Fills, Adds, Removes, Registers, Learns],
        *[Anneals, Switches],
    ],
)
def test_plain_attributes_are_as_they_were_and_change_once(kind):
    model, other = within(kind())
    expect_same(model, other)
    assert plain(other) == plain(model)


def test_what_changes_after_the_forward_is_kept_for_the_next_one():
    model, other = within(Counts())

    def count(model):
        model[0].calls += 10

    expect_same(model, other, between=count)
    assert other[0].calls == model[0].calls == 33


class Routes(Layers):
    """Leaves a loss of its own in attributes, where its owner takes it from."""

    def __init__(self):
        super().__init__()
        self.losses, self.by_name, self.seen = [], {}, deque(maxlen=2)

    def between(self, hidden):
        self.loss = torch.tanh(hidden).square().mean()
        self.losses.append(self.loss)
        self.by_name["loss"] = self.loss
        self.seen.append(self.loss.detach())
        return hidden


def test_a_loss_in_an_attribute_is_that_of_the_forward():
    found = []
    for model in within(Routes()):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(8, 4)).square().sum() + sum(model[0].losses)
            kept = model[0].loss
            model[0].losses.clear()
            loss.backward()
            # That of the repetition would keep all of the repetition until the next step.
            assert model[0].loss is kept is model[0].by_name["loss"]
            assert not model[0].losses
            optimizer.step()
        found.append([loss, *model[0].seen, *[one.grad for one in model.parameters()]])
        assert len(model[0].seen) == 2
    torch.testing.assert_close(*found, rtol=0, atol=0)


def _train_around_a_sharded_part(_):
    from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: PLC0415 - takes its time

    losses = []
    for names in ([], ["0"]):
        torch.manual_seed(0)
        part = FullyShardedDataParallel(Layers(), device_id=torch.device("cpu"))
        model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), part), nn.Linear(4, 4))
        apply_module_settings(model, {"activation_checkpointing": names})
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().sum()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == losses[1]


@pytest.mark.skipif(not SHARDS, reason="torch shards on the CPU since 2.8")
def test_a_part_that_torch_shards_begins_once(run_ranks):
    run_ranks(_train_around_a_sharded_part, 1)


class Wraps(nn.Module):
    """Calls a part that counts, within a checkpoint that somebody else made."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, inputs):
        return torch.utils.checkpoint.checkpoint(self.part, inputs, use_reentrant=False)


def test_attributes_change_once_in_a_checkpoint_of_another_kind():
    model, other = within(Wraps(Alternates()), names="0.part")
    outputs = [one(torch.ones(8, 4)).square().sum() for one in (model, other)]
    torch.testing.assert_close(*outputs, rtol=0, atol=0)
    outputs[1].backward()
    assert model[0].part.name == other[0].part.name


class Scale(Layers):
    """A scale that is kept within bounds, as those of logits are."""

    def __init__(self, begin, *, by_data):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), begin))
        self.by_data = by_data

    def between(self, hidden):
        if self.by_data:
            self.scale.data.clamp_(0, 1.5)
        else:
            with torch.no_grad():
                self.scale.clamp_(0, 1.5)
        return hidden * self.scale


@pytest.mark.parametrize("by_data", [False, True])
@pytest.mark.parametrize("begin", [1.0, 1.4999, 3.0])
def test_a_parameter_may_be_kept_within_bounds(begin, by_data):
    expect_same(*within(Scale(begin, by_data=by_data)))


class Decays(Layers):
    """A parameter of two names that each forward changes by one, between two uses."""

    def __init__(self, *, by_data, frozen):
        super().__init__()
        self.table = nn.Embedding(1, 4).requires_grad_(not frozen)
        self.codes = self.table.weight
        self.by_data = by_data

    def between(self, hidden):
        hidden = hidden * self.codes.clone()
        with torch.no_grad():
            codes = self.codes.data if self.by_data else self.codes
            codes.mul_(0.5)
        return hidden * self.table.weight.clone()


@pytest.mark.parametrize("by_data", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_parameter_that_each_forward_changes_is_as_it_was(frozen, by_data):
    expect_same(*within(Decays(by_data=by_data, frozen=frozen)))


def test_a_parameter_that_a_second_forward_changes_before_the_backward_pass_is_as_it_was():
    found = []
    for model in within(Decays(by_data=False, frozen=False)):
        inputs = torch.arange(32.0).reshape(8, 4) / 32
        sum(model(inputs).square().sum() for _ in range(2)).backward()
        found.append([one.grad for one in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_parameter_that_the_forward_changes_is_as_it_was_in_each_of_two_backward_passes():
    found = []
    for model in within(Decays(by_data=False, frozen=False)):
        loss = model(torch.arange(32.0).reshape(8, 4) / 32).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([one.grad for one in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_values_are_compared_in_the_first_step_only(monkeypatch):
    _, other = within(Decays(by_data=True, frozen=False))
    trained(other, steps=1)
    monkeypatch.setattr(mm_runner.model._kept_parameters, "is_equal", None)  # would wait for a GPU
    trained(other, steps=1)


@pytest.mark.skipif(
    not hasattr(torch._C, "_current_graph_task_id"),
    reason="a torch before 2.0 does not tell that a forward begins in a backward pass",
)
def test_a_parameter_that_changes_within_a_reentrant_checkpoint_is_refused():
    class Repeats(Wraps):
        def forward(self, inputs):
            return torch.utils.checkpoint.checkpoint(self.part, inputs, use_reentrant=True)

    _, other = within(Repeats(Decays(by_data=True, frozen=False)), names="0.part")
    loss = other(torch.ones(8, 4, requires_grad=True) * 1.0).square().sum()
    with pytest.raises(ConfigError, match=r"changes 'codes', a parameter.*not kept"):
        loss.backward()


def test_the_values_of_others_are_not_kept_beyond_the_first_forward(monkeypatch):
    _, other = within(Scale(3.0, by_data=False))
    trained(other, steps=1)
    copied = copies_of(monkeypatch, lambda: trained(other, steps=1))
    assert {tuple(one.shape) for one in copied} == {(4,)}  # its weights are of (4, 4)


def test_another_parameter_in_its_place_is_refused():
    class Replaces(Layers):
        def between(self, hidden):
            self.last.weight = nn.Parameter(self.last.weight * 0.5)
            return hidden

    _, other = within(Replaces())
    with pytest.raises(ConfigError, match=r"puts another parameter in place of 'last.weight'"):
        other(torch.ones(8, 4))
