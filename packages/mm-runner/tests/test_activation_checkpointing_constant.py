"""Long structures in attributes that do not change: they cost nothing after the first steps."""

import copy
import pickle
import sys
import threading

import pytest
import torch
from layers import Layers, expect_same, trained, within

import mm_runner.model._kept_containers
import mm_runner.model._plain_values

MANY = 2000


class Has(Layers):
    def __init__(self, value):
        super().__init__()
        self.value = value


def shared():
    rows = [[number] for number in range(MANY)]
    return {"all": rows, "again": (rows, [])}


@pytest.mark.parametrize(
    "make",
    [
        lambda: [[0.5] * 40 for _ in range(40)],
        lambda: {"annotations": [{"bbox": [1, 2], "seg": []} for _ in range(MANY)], "info": {}},
        lambda: {number: [number + 1] if number % 2 else [] for number in range(MANY)},
        lambda: tuple((str(number), str(number + 1)) for number in range(MANY)),
        lambda: tuple(map(str, range(MANY))),
        lambda: [((str(number),), {}) for number in range(MANY)],
        shared,
    ],
    ids=["short", "empty", "leaves", "pairs", "strings", "tuples", "shared"],
)
def test_a_long_structure_that_does_not_change_is_not_looked_through_later(make, monkeypatch):
    model, other = within(Has(make()))
    expect_same(model, other, steps=2)
    seen = []
    looked = mm_runner.model._plain_values.kinds_not_plain

    def counted(values):
        seen.extend(values)
        return looked(values)

    for part in (mm_runner.model._plain_values, mm_runner.model._kept_containers):
        monkeypatch.setattr(part, "kinds_not_plain", counted)
    value = other[0].value
    trained(other, steps=2)
    assert seen == []
    assert other[0].value is value
    assert value == model[0].value
    for copied in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):  # noqa: S301
        trained(copied, steps=1)  # to those, they are others
        assert seen
        seen.clear()


def test_tuples_of_many_tensors_are_not_looked_through(monkeypatch):
    _, other = within(Has(tuple(torch.zeros(1) for _ in range(MANY))))
    asked = []
    is_ordinary = mm_runner.model._kept_tensors.is_ordinary
    monkeypatch.setattr(
        mm_runner.model._kept_tensors,
        "is_ordinary",
        lambda one: asked.append(one) or is_ordinary(one),
    )
    trained(other, steps=2)
    assert asked == []


class FillsLate(Layers):
    """Fills lists of a long structure that were empty, in each second step from the third on."""

    def __init__(self):
        super().__init__()
        self.tree = {"all": [{"rows": [number], "new": []} for number in range(MANY)]}
        self.calls = 0

    def between(self, hidden):
        self.calls += 1
        if self.calls > 2 and self.calls % 2:
            self.tree["all"][self.calls]["new"].append(self.calls)
            self.tree["all"].append(self.calls)
        return hidden


def test_what_is_added_to_a_structure_that_was_constant_is_there_once():
    def take(model):
        if model[0].calls == 5:
            model[0].tree["all"][5]["new"].clear()
            model[0].tree["all"].pop()

    model, other = within(FillsLate())
    expect_same(model, other, between=take, steps=8)
    assert other[0].tree == model[0].tree
    assert other[0].tree["all"][5]["new"] == []
    assert other[0].tree["all"][7]["new"] == [7]
    assert other[0].tree["all"][MANY:] == [3, 7]


class Counts(Layers):
    """Counts classes, of which the second batch has none; and what is beside many names."""

    def __init__(self):
        super().__init__()
        self.counts = [0] * MANY
        self.info = {"names": tuple(map(str, range(MANY))), "load": [0] * 8}
        self.calls = 0

    def between(self, hidden):
        self.calls += 1
        if self.calls != 2:
            self.counts[7] += 1
        if self.calls > 2:
            self.info["load"][0] += 1
        return hidden


def test_what_pauses_or_begins_late_in_a_long_structure_counts_once():
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
        self.first.rows = [[number] for number in range(MANY)]
        self.held = {"rows": self.first.rows, "log": []}
        self.is_logging = False

    def between(self, hidden):
        if self.is_logging:
            self.held["log"].append(hidden.mean().item())
        return hidden


def test_structures_that_have_one_in_common_are_each_followed():
    model, other = within(Holds())
    for is_logging in (False, True, False, True):
        for one in (model, other):
            one[0].is_logging = is_logging
            trained(one, steps=2)
        assert other[0].held["log"] == model[0].held["log"]
        assert other[0].held["rows"] == model[0].first.rows


class HoldsLog(Layers):
    """Has a list of its own in a long one, too."""

    def __init__(self):
        super().__init__()
        self.log = []
        self.held = [*range(MANY), self.log]

    def between(self, hidden):
        if self.log is None:
            self.held[-1].append(1)
        return hidden


def test_what_a_long_structure_had_in_common_with_another_is_followed_without_that():
    model, other = within(HoldsLog())
    for one in (model, other):
        trained(one, steps=1)
        one[0].log = None
        trained(one, steps=2)
    assert other[0].held == model[0].held
    assert other[0].held[-1] == [1, 1]


def test_tuples_that_the_module_has_no_more_are_not_kept_alive():
    _, other = within(Has(()))
    for number in range(6):
        other[0].value = tuple((number, one) for one in range(MANY))
        trained(other, steps=1)
    known = other[0]._known_changes.plain_tuples
    assert len({**known._known, **known._of_last_forward}) <= 2


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


class Unsteady(dict):
    def copy(self):
        raise RuntimeError("dictionary changed size during iteration")


def test_a_container_that_changes_all_the_time_is_not_followed(monkeypatch):
    # As a thread that never rests would let it be.
    kinds = mm_runner.model._kept_containers.CONTAINERS | {tuple, Unsteady}
    for part in (mm_runner.model._kept_containers, mm_runner.model._kept_attributes):
        monkeypatch.setattr(part, "_HOLDING", kinds)
    model, other = within(Has({"a": Unsteady(b=1), "c": [1]}))
    expect_same(model, other)


class Fails(list):
    def copy(self):
        raise ValueError("no copy")


def test_an_error_in_putting_back_leaves_the_module_as_the_forward_left_it(monkeypatch):
    kinds = mm_runner.model._kept_containers.CONTAINERS | {tuple, Fails}
    for part in (mm_runner.model._kept_containers, mm_runner.model._kept_attributes):
        monkeypatch.setattr(part, "_HOLDING", kinds)
    _, other = within(Fed())
    other[0].fed = Fails()
    loss = other(torch.ones(8, 4)).sum()
    other[0].first.eval()
    with pytest.raises((ValueError, RuntimeError), match="no copy"):
        loss.backward()
    assert other[0].calls == other[0].mean == 1
    assert not other[0].first.training
