"""Hooks of a few lines: buffers, caches, losses, and the logger's arguments."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from toy import NO_VALIDATION, Classifier, Scripted, loader_cfg, runner_arguments
from typing_extensions import override

from mm_amp import NonFiniteError
from mm_runner import ConfigError, Runner
from mm_runner.evaluator import BaseMetric
from mm_runner.hooks import (
    CheckInvalidLossHook,
    EmptyCacheHook,
    Hook,
)
from mm_runner.hooks._logger import mean_over_ranks


class Normed(Classifier):
    def __init__(self):
        super().__init__()
        self.layers[1] = nn.BatchNorm1d(8)


class Buffers(Hook):
    """The buffers that validations see, and those after training."""

    def __init__(self):
        self.seen = []

    @override
    def before_val_iter(self, runner, batch_idx, data_batch=None):
        if batch_idx == 0:
            self.seen.append(torch.cat([one.flatten() for one in runner.model.buffers()]))


def _sync_buffers(_rank, work_dir):
    for hooks, expected in (([], False), ([{"type": "SyncBuffersHook"}], True)):
        seen = Buffers()
        runner = Runner(
            **runner_arguments(
                f"{work_dir}/{expected}",
                model={"type": Normed},
                cfg={"model_wrapper_cfg": {"broadcast_buffers": False}},
                custom_hooks=[*hooks, seen],
                launcher="none",
            )
        )
        runner.train()
        mine = torch.stack(seen.seen)
        both = [torch.empty_like(mine) for _ in range(2)]
        torch.distributed.all_gather(both, mine)
        assert both[0].equal(both[1]) is expected
        assert mine[0][-1] == 3  # num_batches_tracked is counted, not averaged


def _means_over_ranks(rank):
    assert mean_over_ranks({"a": float(rank), "b": 2.0}) == {"a": 0.5, "b": 2.0}
    many = {f"loss_{index}": float(rank + index) for index in range(200)}
    assert mean_over_ranks(many)["loss_7"] == 7.5
    other = {"a": float(rank), f"only_{rank}": 4.0}  # each has a name of its own
    assert mean_over_ranks(other) == {"a": 0.5, "only_0": 4.0, "only_1": 4.0}


def _invalid_loss(rank, work_dir):
    class Spoil(Hook):
        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if rank == 1 and batch_idx == 3:
                data_batch["inputs"].fill_(float("nan"))

    runner = Runner(
        **runner_arguments(
            work_dir,
            custom_hooks=[CheckInvalidLossHook(interval=2), Spoil()],
            train_dataloader=loader_cfg(batch_size=2),
            launcher="none",
            **NO_VALIDATION,
        )
    )
    here = "loss is nan" if rank == 1 else "on another rank"
    with pytest.raises(NonFiniteError, match=f"after step 4 a loss is not finite: {here}"):
        runner.train()


def _all_on_ranks(rank, work_dir):
    _means_over_ranks(rank)
    _sync_buffers(rank, f"{work_dir}/buffers")
    _invalid_loss(rank, f"{work_dir}/loss")


def test_ranks_agree_on_buffers_means_and_losses(run_ranks, tmp_path):
    run_ranks(_all_on_ranks, 2, str(tmp_path))


def test_the_cache_of_a_device_is_emptied_through_a_stand_in(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "xyz", SimpleNamespace(empty_cache=lambda: calls.append(1)), False)
    device = SimpleNamespace(device=SimpleNamespace(type="xyz"))
    for options, expected in (
        ({}, [0, 1, 1]),
        ({"before_epoch": True, "after_epoch": False}, [1, 1, 1]),
        ({"after_iter": True}, [0, 2, 2]),
    ):
        hook, counts = EmptyCacheHook(**options), []
        calls.clear()
        hook.before_train_epoch(device)
        counts.append(len(calls))
        hook.after_train_iter(device, 0)
        hook.after_val_epoch(device)
        counts.append(len(calls))
        hook.before_train_epoch(SimpleNamespace(device=torch.device("cpu")))
        counts.append(len(calls))
        assert counts == expected


def test_the_logger_names_the_experiment_at_intervals(make_runner):
    runner = make_runner(default_hooks={"logger": {"interval_exp_name": 5}}, experiment_name="try")
    runner.train()
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert log.count(f"Experiment {runner.experiment_name}") == 2


class Arrays(BaseMetric):
    @override
    def process(self, data_batch, data_samples):
        pass

    @override
    def compute_metrics(self, results):
        large = torch.full((1, 1), 2411834567.0)
        return {"a": np.ones(1), "b": large, "c": np.float32(0.5), "table": np.ones(2), "text": "?"}


def test_metrics_of_one_element_are_logged(make_runner):
    runner = make_runner(val_evaluator=Arrays())
    runner.train()
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert log.count("a: 1.0000  b: 2411834624.0000  c: 0.5000\n") == 2
    assert runner.message_hub.get_scalar("val/a").current() == 1.0
    records = map(json.loads, (runner.log_dir / "scalars.jsonl").read_text().splitlines())
    (record, _) = (record for record in records if record["mode"] == "val")
    assert (record["a"], record["c"], "table" in record) == (1.0, 0.5, False)


class Spoil(Hook):
    """Spoils the batches of some steps, and one metric."""

    def __init__(self, steps):
        self.steps = steps

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter in self.steps:
            data_batch["inputs"].fill_(float("nan"))


@pytest.mark.parametrize("steps", [range(6, 12), range(6, 8)])
def test_what_is_not_finite_for_an_interval_is_warned_of_once(make_runner, steps):
    amp = {"type": "AmpOptimWrapper", "dtype": "bfloat16", "max_skips": 9}  # keeps the weights
    metric = Scripted(values=[float("nan"), float("nan")])
    runner = make_runner(
        custom_hooks=[Spoil(steps)],
        default_hooks={"logger": {"interval": 3}},
        log_processor={"window_size": 3},
        optim_wrapper={**amp, "optimizer": {"type": "SGD", "lr": 0.1}},
        val_evaluator=metric,
    )
    runner.train()
    log = next(runner.log_dir.glob("*.log")).read_text()
    is_whole = len(steps) == 6
    assert (
        log.count("loss has not been finite in any of the newest steps, up to step 9") == is_whole
    )
    assert log.count("val/accuracy has not been finite after step 6.") == 1
    assert log.count("not been finite") == 1 + is_whole


def test_lines_of_a_run_by_iterations_count_these(make_runner):
    runner = make_runner(
        train_cfg={"by_epoch": False, "max_iters": 8, "val_interval": 4},
        default_hooks={"logger": {"interval": 3, "ignore_last": False}, "checkpoint": None},
    )
    runner.train()
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert [
        line.split("[")[1].split("]")[0] for line in log.splitlines() if "Iter(train)" in line
    ] == [
        "3/8",
        "6/8",
        "8/8",
    ]
    assert "Iter(val)  [4][3/3]" in log
    records = (runner.log_dir / "scalars.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in records] == [3, 4, 6, 8, 8]


@pytest.mark.parametrize(
    "train_cfg", [{"by_epoch": False, "max_iters": 6}, {"max_epochs": 1}], ids=["steps", "epoch"]
)
def test_what_is_shorter_than_the_interval_has_a_line(make_runner, train_cfg):
    runner = make_runner(train_cfg=train_cfg, **NO_VALIDATION)
    runner.train()
    records = (runner.log_dir / "scalars.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in records] == [6]


def test_an_invalid_loss_ends_a_run(make_runner):
    hook = CheckInvalidLossHook(interval=1)
    runner = SimpleNamespace(iter=4)
    hook.after_train_iter(runner, 0, outputs={"loss": torch.ones(()), "grad": float("nan")})
    with pytest.raises(NonFiniteError, match="after step 5 a loss is not finite: loss_a is inf"):
        hook.after_train_iter(runner, 0, outputs={"loss_a": torch.tensor(float("inf"))})
    with pytest.raises(ConfigError, match=r"CheckInvalidLossHook\.interval: an integer >= 1"):
        make_runner(custom_hooks=[{"type": "CheckInvalidLossHook", "interval": 0}])
