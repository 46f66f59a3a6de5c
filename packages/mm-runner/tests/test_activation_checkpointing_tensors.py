"""Tensors in attributes of checkpointed modules that are no buffers, such as a recurrent state."""

import weakref

import pytest
import torch
from layers import Layers, copies_of, expect_same, trained, within
from torch import nn

import mm_runner.model._kept_tensors

LARGE = 1 << 17  # is not kept


class Recurrent(Layers):
    """Computes with a state that its owner sets, or its forward."""

    def __init__(self, *, by_owner):
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.state = torch.zeros(8, 4)
        self.by_owner = by_owner

    def between(self, hidden):
        outputs = self.cell(hidden, self.state.clone())
        if not self.by_owner:
            self.state = outputs.detach()
        return outputs


class Memory(Layers):
    """A state in a tuple, and how often it was set."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)
        self.state = None

    def between(self, hidden):
        state = self.cell(hidden, None if self.state is None else self.state[:2])
        self.state = (*[one.detach() for one in state], 1)
        return state[0]


class Accumulates(Layers):
    """Changes its state in place."""

    def __init__(self):
        super().__init__()
        self.state = torch.ones(4)

    def between(self, hidden):
        hidden = hidden * self.state.clone()
        self.state += 1
        self.state.mul_(0.5)
        return hidden


class AccumulatesLate(Accumulates):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def between(self, hidden):
        self.calls += 1
        return hidden if self.calls == 1 else super().between(hidden)


class Shares(Layers):
    """A part changes the tensor that it reads."""

    def __init__(self):
        super().__init__()
        self.changes = Accumulates()
        self.state = self.changes.state

    def between(self, hidden):
        return self.changes(hidden) * self.state.clone()


class Aliases(Layers):
    """A second name of a buffer that changes."""

    def __init__(self, size=4):
        super().__init__()
        self.register_buffer("scale", torch.ones(size))
        self.same = self.scale

    def between(self, hidden):
        self.scale.mul_(1.5)
        return hidden * self.same[:4].clone()


class Fills(Layers):
    """Computes with a tensor that it makes in its first forward."""

    def between(self, hidden):
        if not hasattr(self, "scale"):
            self.scale = torch.full((4,), 0.5)
            return hidden
        return hidden * self.scale


class Forgets(Layers):
    """Computes with a tensor in its first forward only."""

    def __init__(self):
        super().__init__()
        self.hint = torch.full((4,), 0.5)

    def between(self, hidden):
        if self.hint is not None:
            hidden = hidden * self.hint
            self.hint = None
        return hidden


class OfSequence(Layers):
    """Its state is the last of many outputs, whose memory it is in."""

    def __init__(self, *, in_tuple):
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.state, self.in_tuple = torch.zeros(8, 4), in_tuple
        if in_tuple:
            self.state = (self.state, 1)

    def between(self, hidden):
        outputs = self.cell(hidden, self.state[0] if self.in_tuple else self.state)
        all_outputs = outputs.detach().repeat(LARGE // 32, 1, 1)
        self.state = (all_outputs[-1], 1) if self.in_tuple else all_outputs[-1]
        return outputs


class Nested(Layers):
    """States of two layers."""

    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(4, 4), nn.LSTMCell(4, 4)])
        self.state = None

    def between(self, hidden):
        states = []
        for index, cell in enumerate(self.cells):
            states.append(cell(hidden, None if self.state is None else self.state[index]))
            hidden = states[-1][0]
        self.state = tuple((one.detach(), other.detach()) for one, other in states)
        return hidden


class AccumulatesInTuple(Layers):
    """Changes its state within a tuple in place."""

    def __init__(self):
        super().__init__()
        self.state = ((torch.ones(4), 0.5), 1)

    def between(self, hidden):
        (state, factor), _ = self.state
        hidden = hidden * state.clone()
        state.add_(1).mul_(factor)
        return hidden


class Descends(Layers):
    """Lets its state need gradients for a time."""

    def __init__(self, *, in_tuple):
        super().__init__()
        self.state = torch.zeros(8, 4)
        self.held = (self.state,) if in_tuple else None

    def between(self, hidden):
        state = self.state if self.held is None else self.held[0]
        hidden = hidden * (state + 1)
        state.requires_grad_()
        self.state = (state - 0.1 * hidden).detach()
        if self.held is not None:
            self.held = (self.state,)
        return hidden


@pytest.mark.parametrize(
    "make",
    [
        lambda: Recurrent(by_owner=False),
        *[Memory, Accumulates, Shares, Aliases, lambda: Aliases(LARGE), Fills, Forgets],
        lambda: OfSequence(in_tuple=False),
        lambda: OfSequence(in_tuple=True),
        lambda: Descends(in_tuple=False),
        lambda: Descends(in_tuple=True),
        *[Nested, AccumulatesInTuple],
    ],
    ids=[
        *["state", "tuple", "in place", "shared", "buffer", "large buffer", "made", "forgotten"],
        *["part of outputs", "part in a tuple", "with gradients", "with gradients in a tuple"],
        *["nested", "in place in a tuple"],
    ],
)
def test_a_repetition_begins_with_the_tensors_that_the_forward_began_with(make):
    model, other = within(make())
    if isinstance(model[0], Aliases):
        assert other[0].same is other[0].scale
    expect_same(model, other)
    assert vars(other[0]).keys() - {"_known_changes"} == vars(model[0]).keys()
    for name in ("state", "same", "scale"):
        if hasattr(model[0], name):
            torch.testing.assert_close(getattr(other[0], name), getattr(model[0], name))


def set_state(model):
    model[0].state = model[0].state * 0.5 + 1


def change_state(model):
    model[0].state.mul_(0.5).add_(1)


@pytest.mark.parametrize("between", [set_state, change_state])
def test_a_state_that_the_owner_sets_before_the_backward_pass_is_as_it_was(between):
    model, other = within(Recurrent(by_owner=True))
    expect_same(model, other, between=between)
    torch.testing.assert_close(other[0].state, model[0].state, rtol=0, atol=0)


def test_a_state_is_as_it_was_in_each_of_two_backward_passes():
    found = []
    for model in within(Accumulates()):
        loss = sum(model(torch.full((8, 4), 0.1 * number)).square().sum() for number in range(2))
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([model[0].state, *[one.grad for one in model.parameters()]])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_state_that_is_changed_in_place_later_is_right_from_the_next_step_on():
    model, other = within(AccumulatesLate())
    for one in (model, other):
        trained(one, steps=2)
        with torch.no_grad():
            for parameter in one.parameters():
                parameter.fill_(0.1)
        one[0].state = torch.ones(4)
    expect_same(model, other)
    torch.testing.assert_close(other[0].state, model[0].state, rtol=0, atol=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda inputs: inputs.square().mean(),  # leads to all that it was computed from
        lambda _: torch.zeros(LARGE),
        lambda _: torch.zeros(LARGE)[:4],
        lambda _: (torch.zeros(LARGE), 1),
        lambda _: tuple(torch.zeros(LARGE // 4) for _ in range(5)),
    ],
    ids=["with gradients", "large", "of a large one", "in a tuple", "many in a tuple"],
)
def test_what_would_keep_much_memory_is_not_kept_until_the_backward_pass(make):
    _, other = within(Layers())
    inputs = torch.ones(8, 4, requires_grad=True) * 1.0
    state = make(inputs)
    alive = weakref.ref(state[0] if isinstance(state, tuple) else state)
    other[0].state = state
    loss = other(torch.ones(8, 4)).sum()
    other[0].state = None
    del state
    assert alive() is None
    loss.backward()
    assert other[0].state is None


class Scales(Layers):
    def __init__(self):
        super().__init__()
        self.scale = torch.full((4,), 0.5)

    def between(self, hidden):
        return hidden * self.scale


def test_constant_tensors_are_copied_in_the_first_step_only(monkeypatch):
    _, other = within(Scales())
    trained(other, steps=1)
    copied = copies_of(monkeypatch, lambda: trained(other, steps=2))
    assert not any(one.data_ptr() == other[0].scale.data_ptr() for one in copied)


def test_tuples_of_many_tensors_are_not_looked_through(monkeypatch):
    _, other = within(Layers())
    other[0].state = tuple(torch.zeros(1) for _ in range(2000))
    asked = []
    is_ordinary = mm_runner.model._kept_tensors.is_ordinary
    monkeypatch.setattr(
        mm_runner.model._kept_tensors,
        "is_ordinary",
        lambda one: asked.append(one) or is_ordinary(one),
    )
    trained(other, steps=2)
    assert asked == []
