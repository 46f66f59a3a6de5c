"""Exact resume of real gloo ranks."""

import json
import random
from pathlib import Path

import pytest
import torch
from test_resume import COSINE, MOMENTUM
from test_resume_midway import BatchNormed, Seen, StopAfter, assert_alike, state_of
from torch import nn
from toy import CPU_LOW_PRECISION, NO_VALIDATION, Blobs, Killed, loader_cfg, runner_arguments
from typing_extensions import override

import mm_dist
from mm_runner import Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel
from mm_runner.tools import verify_resume


class Wide(BaseModel):
    """More than one bucket of gradients, whose order of arrival is not that of the parameters."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 3)
        self.first = nn.Linear(4, 64)
        self.middle = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.2))

    def forward(self, inputs, labels, mode="tensor"):
        scores = self.last(self.middle(self.first(inputs)).relu())
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        return (scores, labels) if mode == "predict" else scores


AMP = {
    "type": "AmpOptimWrapper",
    "dtype": CPU_LOW_PRECISION,
    "accumulative_counts": 2,
    "clip_grad": {"max_norm": 1.0},
    "optimizer": {"type": "AdamW", "lr": 0.01},
}
NOISY = {"dataset": Blobs(48, noise=0.5), "batch_size": 2}
BUCKETS = {"model_wrapper_cfg": {"bucket_cap_mb": 0.01}}


# Its random numbers too: it draws for a bucket in each step.
def _train(work_dir, hooks, **changes):
    torch.manual_seed(4321)  # a new process knows nothing of the old one's generators
    random.seed(4321)
    arguments = {
        "param_scheduler": COSINE,
        "custom_hooks": hooks,
        "default_hooks": {"checkpoint": None, "logger": None},
        "launcher": "pytorch",
        **NO_VALIDATION,
        **changes,
    }
    runner = Runner(**runner_arguments(work_dir, **arguments))
    if any(isinstance(hook, StopAfter) for hook in hooks):
        with pytest.raises(Killed):
            runner.train()
    else:
        runner.train()
    return runner


def _resumed_equals_whole(work_dir, stop, **changes):
    whole_seen, parts_seen = Seen(), Seen()
    expected = state_of(_train(work_dir / "whole", [whole_seen], **changes))
    _train(work_dir / "parts", [parts_seen, StopAfter(stop)], **changes)
    resumed = _train(work_dir / "parts", [parts_seen], resume=True, **changes)
    assert parts_seen.steps == whole_seen.steps
    assert_alike(state_of(resumed), expected)
    return resumed


class Drawn(Hook):
    """Keeps which samples were drawn."""

    def __init__(self):
        self.samples = []

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.samples += data_batch["inputs"][:, 0].tolist()


_ELASTIC = {
    "model": {"type": BatchNormed},
    "train_dataloader": loader_cfg(48, batch_size=3),
    "train_cfg": {"max_epochs": 1},
}


def _go_on_with_two_ranks(work_dir):
    """Go on from one process, and stop again."""
    drawn = Drawn()
    _train(work_dir / "elastic", [drawn, StopAfter(8)], resume=True, **_ELASTIC)
    both = mm_dist.all_gather_object(drawn.samples)
    return [sample for samples in both for sample in samples]


def _two_ranks(rank, work_dir):
    work_dir = Path(work_dir)
    drawn = _go_on_with_two_ranks(work_dir)
    if rank == 0:
        (work_dir / "drawn.json").write_text(json.dumps(drawn))
    report = verify_resume(
        runner_arguments(
            work_dir / "unused",
            model={"type": Wide},
            train_dataloader=loader_cfg(**NOISY),
            launcher="pytorch",
        )
    )
    assert report.equal, str(report)
    assert (report.at_step, report.steps) == (5, 10)
    _resumed_equals_whole(
        work_dir / "amp",
        stop=6,
        model={"type": Wide},
        optim_wrapper=AMP,
        train_dataloader=loader_cfg(num_workers=1, **NOISY),
    )
    runner = _resumed_equals_whole(
        work_dir / "iterations",
        stop=15,
        model={"type": BatchNormed},
        optim_wrapper={"optimizer": MOMENTUM},
        train_cfg={"by_epoch": False, "max_iters": 20},
        train_dataloader=loader_cfg(**NOISY, sampler={"type": "InfiniteSampler"}),
    )
    checkpoint = load_checkpoint_file(runner.work_dir / "iter_15.pth")
    data = checkpoint["data"][0]["position"]
    assert (data["epoch"], data["batch"], data["samples"]) == (0, 15, 60)
    # Each rank has statistics of its own, and those are what it goes on with.
    assert set(checkpoint["rank_buffers"][1]) == {"layers.1.running_mean", "layers.1.running_var"}


def _four_ranks(_, work_dir):
    _resumed_equals_whole(
        Path(work_dir) / "buckets",
        stop=4,
        model={"type": Wide},
        optim_wrapper={"optimizer": MOMENTUM},
        train_dataloader=loader_cfg(**NOISY),
        randomness={"seed": 0, "deterministic": True},
        cfg=BUCKETS,
    )


def test_two_ranks_go_on_exactly_and_another_number_of_them_draws_the_rest(run_ranks, tmp_path):
    one = {"launcher": "none", **_ELASTIC}
    drawn = Drawn(), Drawn()
    _train(tmp_path / "elastic", [drawn[0], StopAfter(5)], **one)
    run_ranks(_two_ranks, 2, str(tmp_path))
    runner = _train(tmp_path / "elastic", [drawn[1]], resume=True, **one)
    by_two = json.loads((tmp_path / "drawn.json").read_text())
    # 15 by one process, 3 steps of both with 3 samples each, and the other 15 by one.
    assert [len(part) for part in (drawn[0].samples, by_two, drawn[1].samples)] == [15, 18, 15]
    every = drawn[0].samples + by_two + drawn[1].samples
    assert sorted(every) == sorted(Blobs(48).inputs[:, 0].tolist())
    assert (runner.epoch, runner.iter, runner.max_iters) == (1, 13, 13)
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert (
        "written by 2 process(es), this run has 1: the data continue after sample 33 of pass 1, "
        "each sample once. Schedules and learning rates are left as they are."
    ) in log


def test_four_ranks_go_on_exactly(run_ranks, tmp_path):
    run_ranks(_four_ranks, 4, str(tmp_path))
