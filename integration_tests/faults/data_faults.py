"""A run whose data or loss go wrong: ``data_faults.py FAULT WORK_DIR``; see ``test_data.py``."""

import os
import signal
import sys

import torch
from small_run import Points, build
from torch.utils.data import DataLoader, SequentialSampler, get_worker_info
from typing_extensions import override

from mm_runner.hooks import Hook

# The sample that is read in the second epoch, at the latest, by any rank.
FAULTY = 5


class DyingWorker(Points):
    """Kills the worker that reads one of its samples, as the kernel does if memory runs out."""

    @override
    def __getitem__(self, index):
        if index == FAULTY and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class BrokenSample(Points):
    """One of its samples cannot be read."""

    @override
    def __getitem__(self, index):
        if index == FAULTY:
            raise OSError("cut off after 512 bytes")
        return super().__getitem__(index)


class NotANumber(Hook):
    """Makes the loss of one rank NaN in step 5, and with it the weights of all."""

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 == 5 and runner.rank == runner.world_size - 1:
            data_batch[0].fill_(torch.nan)


class Shard(Points):
    """What one rank has to itself, and not as much as the other."""

    @override
    def __len__(self):
        return 8 + 4 * int(os.environ["RANK"])


class InOrder(SequentialSampler):
    """Says that it deals out by itself, as one sampler per rank may."""

    def set_epoch(self, epoch):
        """Do nothing: the order is always the same."""


def changes_of(fault):
    """Return what a fault changes in the small run."""
    if fault == "dying-worker":
        return {"dataset": DyingWorker(), "loader": {"num_workers": 1}}
    if fault == "broken-sample":
        return {"dataset": BrokenSample(), "loader": {"num_workers": 1}}
    if fault == "nan":
        return {"custom_hooks": [NotANumber(), {"type": "CheckInvalidLossHook", "interval": 1}]}
    if fault == "uneven":
        # Nothing is dealt out: each rank has read its own part of the data.
        return {"train_dataloader": DataLoader(Shard(), batch_size=4, sampler=InOrder(Shard()))}
    return {}


if __name__ == "__main__":
    name, work_dir = sys.argv[1:]
    runner = build(
        work_dir, env_cfg={"dist_cfg": {"timeout": 60, "steady_timeout": 10}}, **changes_of(name)
    )
    runner.train()
    if runner.rank == 0:
        torch.save(runner.model.module.state_dict(), f"{work_dir}/result")
