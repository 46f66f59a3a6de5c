"""Collecting Python's garbage after the same steps on all processes."""

import gc
import sys
import weakref
from collections import deque

import pytest
from toy import NO_VALIDATION, Blobs, Killed, loader_cfg, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.hooks import GarbageCollectionHook, Hook


class Collections(Hook):
    """Keeps the step and the generation of each collection in training."""

    priority = "LOWEST"  # after the hook itself has begun

    def __init__(self):
        self.seen, self.enabled = [], set()
        self.runner = None

    @override
    def before_train(self, runner):
        self.runner = runner
        gc.callbacks.append(self._note)

    @override
    def after_train(self, runner):
        gc.callbacks.remove(self._note)

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.enabled.add(gc.isenabled())
        _make_garbage()

    def _note(self, phase, info):
        if phase == "start":
            # During the hooks after a step it is not counted yet.
            self.seen.append((self.runner.iter, info["generation"]))


def _make_garbage(size=3000):
    """Make more objects than the automatic collection lets pass."""
    rings = [[] for _ in range(size)]
    for ring in rings:
        ring.append(ring)


EPOCH = {"train_dataloader": loader_cfg(48), "train_cfg": {"max_epochs": 2}}


def test_it_collects_by_steps_and_nothing_else_does(make_runner):
    seen = Collections()
    assert gc.isenabled()
    runner = make_runner(
        **EPOCH, custom_hooks=[{"type": "GarbageCollectionHook", "interval": 5}, seen]
    )
    runner.train()
    assert seen.enabled == {False}
    assert gc.isenabled()
    # After each fifth step, each epoch and each validation.
    young, whole = [(4, 1), (9, 1), (14, 1), (19, 1)], [(12, 2), (12, 2), (24, 2), (24, 2)]
    if sys.version_info >= (3, 14):  # which counts generations otherwise
        assert [step for step, _ in seen.seen] == sorted(step for step, _ in young + whole)
    else:
        assert seen.seen == sorted(young + whole)


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_it_is_as_before_after_an_error_too(make_runner, is_on):
    class Fail(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            assert not gc.isenabled()
            raise Killed

    thresholds = gc.get_threshold()
    try:
        gc.enable() if is_on else gc.disable()
        for _ in range(2):
            runner = make_runner(custom_hooks=[GarbageCollectionHook(), Fail()])
            with pytest.raises(Killed):
                runner.train()
            assert gc.isenabled() is is_on
    finally:
        gc.enable()
    assert gc.get_threshold() == thresholds


class Ring:
    """Is in reach of itself."""

    def __init__(self):
        self.own = self


class Outlives(Hook):
    """Makes rings that outlive a collection, and counts those that are there."""

    def __init__(self):
        self.latest, self.alive, self.most = deque(maxlen=4), weakref.WeakSet(), 0

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        ring = Ring()
        self.latest.append(ring)
        self.alive.add(ring)
        self.most = max(self.most, len(self.alive))


def test_memory_does_not_grow_with_the_steps_of_an_epoch(make_runner):
    most = []
    for num_steps in (40, 80):
        outlives = Outlives()
        make_runner(
            train_cfg={"by_epoch": False, "max_iters": num_steps},
            custom_hooks=[GarbageCollectionHook(2), outlives],
            **NO_VALIDATION,
        ).train()
        most.append(outlives.most)
    assert most[0] == most[1] <= 20 + 4


class TrainsItself(Runner):
    """Trains as a script does."""

    def __init__(self, *args, last="after_run", **kwargs):
        super().__init__(*args, **kwargs)
        self.last = last

    @override
    def train(self):
        self.train_loop = self.build_train_loop({"max_epochs": 2})
        self.optim_wrapper = self.build_optim_wrapper({"optimizer": {"type": "SGD", "lr": 0.1}})
        self.call_hook("before_run")
        if self.last == "after_train":
            self.train_loop.run()
        else:
            self.call_hook("before_train")
            assert not gc.isenabled()
            self.call_hook("after_run")
        return self.model


@pytest.mark.parametrize("last", ["after_train", "after_run"])
def test_it_is_as_before_after_a_training_of_the_users_own(tmp_path, last):
    arguments = runner_arguments(tmp_path / "run", **NO_VALIDATION)
    runner = TrainsItself(**arguments, custom_hooks=[GarbageCollectionHook()], last=last)
    try:
        runner.train()
        assert gc.isenabled()
    finally:
        gc.enable()


class Enabled(Blobs):
    """Says of each sample whether its process collects by itself."""

    def __getitem__(self, index):
        return {**super().__getitem__(index), "labels": int(gc.isenabled())}


def test_workers_collect_as_ever(make_runner):
    labels = []

    class Labels(Hook):
        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            labels.extend(data_batch["labels"].tolist())

    make_runner(
        train_dataloader=loader_cfg(
            dataset=Enabled(8), num_workers=1, multiprocessing_context="fork"
        ),
        train_cfg={"max_epochs": 1},
        custom_hooks=[GarbageCollectionHook(), Labels()],
        **NO_VALIDATION,
    ).train()
    assert labels == [1] * 8


@pytest.mark.parametrize("interval", [0, -1, True, 1.5, "often"], ids=str)
def test_an_interval_is_needed(interval):
    with pytest.raises(ConfigError, match=r"GarbageCollectionHook\.interval: an integer >= 1"):
        GarbageCollectionHook(interval)
