"""Iterable datasets that keep their own place: where each training of them begins, and goes on."""

import copy

import pytest
from test_resume_midway import Seen, StopAfter
from torch.utils.data import DataLoader, IterableDataset
from toy import NO_VALIDATION, Blobs, Classifier, Killed, StopBeforeEpoch
from typing_extensions import override

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


@pytest.mark.parametrize("dataset", [Stream, FromItsBegin, OfItsEpoch])
@pytest.mark.parametrize("loop", [EpochBasedTrainLoop, IterBasedTrainLoop])
@pytest.mark.parametrize("stop", [StopAfter(5), StopAfter(6), StopBeforeEpoch(1)])
def test_a_stream_goes_on_with_its_next_pass_as_well(make_runner, tmp_path, dataset, loop, stop):
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

    whole, rest = Seen(), Seen()
    make(whole, work_dir=tmp_path / "whole").train()
    with pytest.raises(Killed):
        make(stop).train()
    make(rest, resume=True).train()
    assert rest.steps == whole.steps[getattr(stop, "step", 6) :]
