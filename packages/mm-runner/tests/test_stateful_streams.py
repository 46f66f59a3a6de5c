"""Iterable datasets that keep their own place: where each training of them begins, and goes on."""

import copy

import pytest
from test_resume_midway import Seen, StopAfter
from torch.utils.data import DataLoader, IterableDataset
from toy import NO_VALIDATION, Blobs, Classifier, Killed, StopBeforeEpoch, loader_cfg
from typing_extensions import override

from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop


class Stream(IterableDataset):
    """Goes on where it was; each pass has another order."""

    def __init__(self):
        self.data, self.at, self.num_passes = Blobs(), 0, 0

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        while self.at < len(self.data):
            self.at += 1
            yield self.data[(self.at * (5 + 2 * self.num_passes)) % len(self.data)]
        self.at, self.num_passes = 0, self.num_passes + 1

    def state_dict(self):
        return {"at": self.at, "num_passes": self.num_passes}

    def load_state_dict(self, state):
        self.at, self.num_passes = state["at"], state["num_passes"]


class First(Hook):
    """Keeps where the data stood behind the first batch, and may end the training as a kill."""

    def __init__(self, fail_at=None):
        self.fail_at, self.states = fail_at, []

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 0:
            self.states.append(runner.train_dataloader.dataset.state_dict())
        if runner.iter == self.fail_at:
            self.fail_at = None
            raise Killed


def expect_the_rest(make, tmp_path, stop, before):
    """Expect of a run that was killed, and is resumed, the steps of one that was not.

    Args:
        make: Makes a run, with hooks and with arguments of the Runner.
        stop: The hook that kills, after its ``step`` or else after ``before`` steps.
    """
    whole, rest = Seen(), Seen()
    make(whole, work_dir=tmp_path / "whole").train()
    with pytest.raises(Killed):
        make(stop).train()
    make(rest, resume=True).train()
    assert rest.steps == whole.steps[getattr(stop, "step", before) :]


def test_unless_somebody_has_set_it_elsewhere(make_runner):
    first, stream = First(2), Stream()
    loader = {**loader_cfg(), "dataset": stream}
    runner = make_runner(**NO_VALIDATION, train_dataloader=loader, custom_hooks=[first])
    with pytest.raises(Killed):
        runner.train()
    stream.load_state_dict({"at": 8, "num_passes": 7})
    runner.train()
    assert first.states[1] == {"at": 12, "num_passes": 7}


@pytest.mark.parametrize("loop", [EpochBasedTrainLoop, IterBasedTrainLoop])
@pytest.mark.parametrize("stop", [StopAfter(5), StopAfter(6), StopBeforeEpoch(1)])
def test_a_stream_goes_on_with_its_next_pass_as_well(make_runner, tmp_path, loop, stop):
    of_steps = loop is IterBasedTrainLoop
    if of_steps and isinstance(stop, StopBeforeEpoch):
        pytest.skip("there is one epoch in all")

    def make(*hooks, **more):
        return make_runner(
            **NO_VALIDATION,
            train_dataloader={**loader_cfg(), "dataset": Stream()},
            train_cfg={"type": loop, **({"max_iters": 12} if of_steps else {"max_epochs": 2})},
            custom_hooks=hooks,
            **more,
        )

    expect_the_rest(make, tmp_path, stop, before=6)


class FromItsBegin(Stream):
    """Begins anew when it is iterated over, unless a state was loaded; at its end it says so."""

    def __init__(self):
        super().__init__()
        self.start = 0

    @override
    def __iter__(self):
        self.at, self.start = self.start, 0
        while self.at < len(self.data):
            self.at += 1
            yield self.data[self.at - 1]

    @override
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.start = self.at


class OfItsEpoch(IterableDataset):
    """Goes back to the state that was loaded whenever it is iterated over in the epoch of that."""

    def __init__(self):
        self.data, self.epoch, self.loaded, self.state = Blobs(), 0, None, None

    def __len__(self):
        return len(self.data)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        goes_on = self.loaded is not None and self.loaded["epoch"] == self.epoch
        first = self.loaded["at"] if goes_on else 0
        for at in range(first, len(self.data)):
            self.state = {"epoch": self.epoch, "at": at + 1}
            yield self.data[at]

    def state_dict(self):
        return copy.copy(self.state)

    def load_state_dict(self, state):
        self.loaded = state


@pytest.mark.parametrize("dataset", [FromItsBegin, OfItsEpoch])
@pytest.mark.parametrize("loop", [EpochBasedTrainLoop, IterBasedTrainLoop])
@pytest.mark.parametrize("stop", [StopAfter(5), StopAfter(6), StopBeforeEpoch(1)])
def test_so_does_one_whose_state_behind_a_pass_is_its_end(
    make_runner, tmp_path, dataset, loop, stop
):
    of_steps = loop is IterBasedTrainLoop
    if of_steps and isinstance(stop, StopBeforeEpoch):
        pytest.skip("there is one epoch in all")

    def make(*hooks, **more):
        # A loader of the user's own begins each pass with a random number of the process.
        return make_runner(
            **NO_VALIDATION,
            model={"type": Classifier, "dropout": 0.5},
            train_dataloader=DataLoader(dataset(), batch_size=4),
            train_cfg={"type": loop, **({"max_iters": 18} if of_steps else {"max_epochs": 3})},
            custom_hooks=hooks,
            **more,
        )

    expect_the_rest(make, tmp_path, stop, before=6)


def test_a_state_that_cannot_be_copied_is_left_alone(make_runner):
    class Unlike(FromItsBegin):
        @override
        def state_dict(self):
            return {"at": self.at, "rest": iter(x for x in "rest")}

    loader, no_files = {**loader_cfg(), "dataset": Unlike()}, {"checkpoint": None}
    runner = make_runner(**NO_VALIDATION, train_dataloader=loader, default_hooks=no_files)
    runner.train()
    assert runner.iter == 12
