"""What checkpointed modules leave in attributes, and in lists and dicts there, is there once."""

import sys
import threading
import weakref
from collections import Counter, OrderedDict, defaultdict, deque

import pytest
import torch
from layers import Layers, expect_same, trained, within

import mm_runner.model._kept_attributes
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
            self.rows[7][1]["word"].append(self.word)
            self.numbers["all"][f"{self.word} {len(self.words)}"] = len(self.words)
            self.words.append(self.word)
            self.known.add(self.word)
        return hidden


def long_ones(block):
    return [block.words, block.merges, block.numbers["all"], block.known, block.rows]


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


class FillsLate(Layers):
    """Changes what is deep in a long structure, in each second step from the third on."""

    def __init__(self):
        super().__init__()
        self.tree = {"all": [{"rows": [number], "new": []} for number in range(LONG)]}
        self.calls = 0

    def between(self, hidden):
        self.calls += 1
        if self.calls > 2 and self.calls % 2:
            row = self.tree["all"][self.calls]
            row["rows"][0] += 1
            row["new"].append(self.calls)
            self.tree["all"].append(self.calls)
        return hidden


def test_what_begins_late_and_deep_in_a_long_structure_is_there_once():
    def take(model):
        if model[0].calls == 5:
            model[0].tree["all"][5]["new"].clear()
            model[0].tree["all"].pop()

    model, other = within(FillsLate())
    expect_same(model, other, between=take, steps=8)
    assert other[0].tree == model[0].tree
    assert other[0].tree["all"][5] == {"rows": [6], "new": []}
    assert other[0].tree["all"][7] == {"rows": [8], "new": [7]}
    assert other[0].tree["all"][LONG:] == [3, 7]


class Counts(Layers):
    """Counts classes, of which the second batch has none; and what is beside many names."""

    def __init__(self):
        super().__init__()
        self.counts = [0] * LONG
        self.info = {"names": tuple(map(str, range(LONG))), "load": [0] * LONG}
        self.calls = 0

    def between(self, hidden):
        self.calls += 1
        if self.calls != 2:
            self.counts[7] += 1
        if self.calls > 2:
            self.info["load"][0] += 1
        return hidden


def test_what_pauses_or_begins_late_in_a_long_list_counts_once():
    model, other = within(Counts())
    expect_same(model, other, steps=8)
    assert other[0].counts == model[0].counts
    assert other[0].counts[7] == 7
    assert other[0].info == model[0].info
    assert other[0].info["load"][0] == 6


class Holds(Layers):
    """Holds what is in a part, too."""

    def __init__(self):
        super().__init__()
        self.first.rows = [[number] for number in range(LONG)]
        self.held = {"rows": self.first.rows, "log": []}

    def between(self, hidden):
        self.held["log"].append(hidden.mean().item())
        self.held["rows"][3][0] += 1
        return hidden


def test_containers_of_two_modules_that_have_one_in_common_change_once():
    model, other = within(Holds())
    expect_same(model, other)
    assert other[0].held == model[0].held
    assert other[0].held["rows"] is other[0].first.rows
    assert other[0].first.rows[3] == [6]


@pytest.mark.parametrize("leaf", [(), ([],)], ids=["plain", "with a list"])
def test_tuples_that_are_in_very_many_places_are_looked_through_once(leaf):
    tree = leaf
    for _ in range(64):
        tree = (tree, tree)
    _, other = within(Layers())
    other[0].tree = tree
    trained(other)
    assert other[0].tree is tree


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


class Fed(Layers):
    """Has a dict that a thread of its owner fills."""

    def __init__(self):
        super().__init__()
        self.fed = {key: [] for key in range(5000)}
        self.calls = 0
        self.register_buffer("mean", torch.zeros(()))

    def between(self, hidden):
        self.calls += 1
        self.mean += 1
        return hidden


def test_a_dict_that_another_thread_fills_is_no_error():
    _, other = within(Fed())
    is_done = threading.Event()

    def feed():
        number = 10000
        while not is_done.wait(0.00002):
            other[0].fed[number] = object()
            number += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=feed)
    thread.start()
    try:
        trained(other, steps=100)
    finally:
        is_done.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert other[0].calls == other[0].mean == 100


def let_be_followed(monkeypatch, kind):
    kinds = mm_runner.model._kept_containers.CONTAINERS | {tuple, kind}
    for part in (mm_runner.model._kept_containers, mm_runner.model._kept_attributes):
        monkeypatch.setattr(part, "_HOLDING", kinds)


class Unsteady(dict):
    def copy(self):
        raise RuntimeError("dictionary changed size during iteration")


def test_a_container_that_changes_all_the_time_is_not_followed(monkeypatch):
    let_be_followed(monkeypatch, Unsteady)  # as a thread that never rests would let it be
    model, other = within(Layers())
    for one in (model, other):
        one[0].value = {"a": Unsteady(b=1), "c": [1]}
    expect_same(model, other)


class Fails(list):
    def copy(self):
        raise ValueError("no copy")


def test_an_error_in_putting_back_leaves_the_module_as_the_forward_left_it(monkeypatch):
    let_be_followed(monkeypatch, Fails)
    _, other = within(Fed())
    other[0].fed = Fails()
    loss = other(torch.ones(8, 4)).sum()
    other[0].first.eval()
    with pytest.raises((ValueError, RuntimeError), match="no copy"):
        loss.backward()
    assert other[0].calls == other[0].mean == 1
    assert not other[0].first.training
