"""What checkpointed modules leave in attributes, and in lists and dicts there, is there once."""

import copy
import pickle
import weakref
from collections import Counter, OrderedDict, defaultdict, deque

import pytest
import torch
from layers import Layers, expect_same, trained, within

import mm_runner.model._kept_containers

LONG = 2000


class Routes(Layers):
    """Puts a loss of its own into its store, where its owner takes it from."""

    def __init__(self, store, keep):
        super().__init__()
        self.store, self.keep = store, keep
        self.between_references = []

    def between(self, hidden):
        hidden = torch.tanh(hidden)
        self.between_references.append(weakref.ref(hidden))
        self.keep(self.store, hidden.square().mean())
        return hidden


def in_itself():
    store = {"a": []}
    store["self"] = [store]
    return store


@pytest.mark.parametrize(
    ("make", "keep", "found_in"),
    [
        (lambda: defaultdict(list), lambda s, loss: s["a"].append(loss), lambda s: s["a"]),
        (lambda: {"a": {}}, lambda s, loss: s["a"].update(b=loss), lambda s: s["a"]),
        (lambda: [OrderedDict()], lambda s, loss: s[0].update(b=loss), lambda s: s[0]),
        (lambda: [[deque()]], lambda s, loss: s[0][0].append(loss), lambda s: s[0][0]),
        (lambda: ([], 0), lambda s, loss: s[0].append(loss), lambda s: s[0]),
        (lambda: {"a": set()}, lambda s, loss: s["a"].add(loss), lambda s: s["a"]),
        (in_itself, lambda s, loss: s["a"].append(loss), lambda s: s["a"]),
    ],
    ids=["lists", "dicts", "ordered", "deques", "in a tuple", "sets", "in itself"],
)
def test_a_loss_in_containers_within_containers_is_that_of_the_forward(make, keep, found_in):
    found = []
    for model in within(Routes(make(), keep)):
        block = model[0]
        for _ in range(3):
            loss = model(torch.ones(8, 4)).square().sum()
            kept = found_in(block.store)
            losses = list(kept.values() if isinstance(kept, dict) else kept)
            kept.clear()
            (loss + sum(losses)).backward()
            assert not kept
            assert len(losses) == 1
            del losses, loss
            assert not any(reference() is not None for reference in block.between_references)
        found.append([one.grad for one in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


class Logs(Layers):
    def __init__(self):
        super().__init__()
        self.log = defaultdict(list)
        self.counts, self.by_class = Counter(), {"a": Counter()}

    def between(self, hidden):
        self.log["mean"].append(hidden.mean().item())
        self.counts["calls"] += 1
        self.by_class["a"].update(["calls"])
        return hidden


def test_logs_and_counts_get_each_forward_once():
    model, other = within(Logs())
    expect_same(model, other)
    for name in ("log", "counts", "by_class"):
        assert getattr(other[0], name) == getattr(model[0], name)
    assert other[0].counts["calls"] == 3


class Reads(Layers):
    """Has a vocabulary, to which it may add."""

    def __init__(self):
        super().__init__()
        self.words = [f"word {number}" for number in range(LONG)]
        self.merges = [(word, "x") for word in self.words]
        self.numbers = {"all": {word: number for number, word in enumerate(self.words)}}
        self.known = set(self.words)
        self.rows = [[number, {"word": [word]}] for number, word in enumerate(self.words)]
        self.word = None

    def between(self, hidden):
        if self.word is not None:
            self.numbers["all"][f"{self.word} {len(self.words)}"] = len(self.words)
            self.words.append(self.word)
            self.known.add(self.word)
        return hidden


def long_ones(block):
    return [block.words, block.merges, block.numbers["all"], block.known, block.rows]


def test_long_lists_and_dicts_that_do_not_change_cost_nothing_later(monkeypatch):
    _, other = within(Reads())
    compared = []
    holds = mm_runner.model._kept_containers._holds
    monkeypatch.setattr(
        mm_runner.model._kept_containers,
        "_holds",
        lambda container, content: compared.append(container) or holds(container, content),
    )
    trained(other, steps=1)
    assert sum(len(one) == LONG for one in compared) == len(long_ones(other[0]))
    compared.clear()
    trained(other, steps=2)
    assert [one for one in compared if one is not other[0].numbers] == []


def test_what_long_lists_and_dicts_get_later_they_get_once():
    model, other = within(Reads())
    for word in (None, "new", "newer", None):
        for one in (model, other):
            one[0].word = word
            trained(one, steps=1)
        assert long_ones(other[0]) == long_ones(model[0])
    assert len(other[0].words) == LONG + 2


def test_what_the_owner_takes_from_long_lists_does_not_come_back():
    def take(model):
        model[0].words.pop()
        model[0].numbers["all"].popitem()

    _, other = within(Reads())
    trained(other, steps=1)
    other[0].word = "new"
    trained(other, between=take, steps=1)
    assert len(other[0].words) == len(other[0].numbers["all"]) == LONG


def test_what_the_owner_adds_to_long_lists_is_kept():
    model, other = within(Reads())

    def add(model):
        model[0].words.append("of the owner")

    expect_same(model, other, between=add)
    assert other[0].words == model[0].words
    assert len(other[0].words) == LONG + 3


def test_long_lists_that_the_module_has_no_more_are_not_kept_alive():
    _, other = within(Reads())
    trained(other, steps=1)
    known, words = other[0]._known_changes.constant, other[0].words
    assert known.get(words).root is words
    other[0].words = list(words)
    trained(other, steps=1)
    assert known.get(words) is None
    assert known.get(other[0].words) is not None


def test_copies_of_a_module_know_nothing_of_its_long_lists():
    _, other = within(Reads())
    trained(other, steps=1)
    for copied in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):  # noqa: S301
        trained(copied, steps=1)
        assert long_ones(copied[0]) == long_ones(other[0])


class Remembers(Layers):
    """Long lists that change only from its second step on."""

    def __init__(self):
        super().__init__()
        self.losses = [torch.zeros(()) for _ in range(LONG)]
        self.recent = deque(range(LONG), maxlen=LONG)
        self.by_class = [[] for _ in range(LONG)]
        self.calls = 0

    def between(self, hidden):
        self.calls += 1
        if self.calls > 1:
            self.losses[0] = torch.tanh(hidden).square().mean()
            self.recent.append(self.calls)
            self.by_class[self.calls].append(self.calls)
        return hidden


def test_long_lists_of_tensors_of_empty_lists_and_queues_are_always_as_the_forward_left_them():
    model, other = within(Remembers())
    for _ in range(3):
        for one in (model, other):
            trained(one, steps=1)
        kept = other[0].losses[0]
        other(torch.ones(8, 4)).sum().backward()
        assert other[0].losses[0] is not kept
        model(torch.ones(8, 4)).sum().backward()
        assert other[0].recent == model[0].recent
        assert other[0].by_class == model[0].by_class


class Takes(Layers):
    """Its owner takes away what it leaves in an attribute, its own and one of a part."""

    loss = None

    def between(self, hidden):
        hidden = torch.tanh(hidden)
        self.loss = hidden.square().mean()
        self.first.output = hidden
        return hidden


def test_attributes_that_the_owner_took_away_do_not_come_back():
    found = []
    for model in within(Takes()):
        block = model[0]
        for _ in range(2):
            loss = model(torch.ones(8, 4)).square().sum() + block.loss
            output = weakref.ref(block.first.output)
            del block.loss, block.first.output
            loss.backward()
            del loss
            assert block.loss is None
            assert not hasattr(block.first, "output")
            assert output() is None
        found.append([one.grad for one in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)
