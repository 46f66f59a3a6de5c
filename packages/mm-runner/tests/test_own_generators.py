"""Loaders of the user's own that shuffle by a generator of their own, in a run that goes on."""

import pytest
import torch
from test_resume_midway import StopAfter
from test_stateful_streams import expect_the_rest
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from toy import NO_VALIDATION, Blobs, StopBeforeEpoch

from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop


def shuffled(generator):
    return DataLoader(Blobs(), batch_size=4, shuffle=True, generator=generator)


def shuffled_in_batches(generator):
    batches = BatchSampler(RandomSampler(Blobs(), generator=generator), 4, drop_last=False)
    return DataLoader(Blobs(), batch_sampler=batches)


def with_a_state(generator):
    kind = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    return kind(Blobs(), batch_size=4, shuffle=True, generator=generator)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("make_loader", [shuffled, shuffled_in_batches, with_a_state])
@pytest.mark.parametrize(
    ("loop", "stop"),
    [
        (EpochBasedTrainLoop, StopAfter(8)),
        (EpochBasedTrainLoop, StopBeforeEpoch(2)),
        (IterBasedTrainLoop, StopAfter(8)),
    ],
)
def test_each_epoch_has_the_order_it_has_without_a_stop(
    make_runner, tmp_path, make_loader, loop, stop
):
    of_steps = loop is IterBasedTrainLoop

    def make(*hooks, **more):
        generator = torch.Generator().manual_seed(3)
        return make_runner(
            **NO_VALIDATION,
            train_dataloader=make_loader(generator),
            train_cfg={"type": loop, **({"max_iters": 18} if of_steps else {"max_epochs": 3})},
            custom_hooks=hooks,
            **more,
        )

    expect_the_rest(make, tmp_path, stop, before=12)
