"""Ending training in time."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from test_interruption import RUN, assert_equal, parameters, stopped
from toy import loader_cfg, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.config import Config
from mm_runner.hooks import Hook, TimeLimitHook


class Wait(Hook):
    """Lets the time begin, and waits until it is up, at a stage, once the run is at a step."""

    def __init__(self, limit=None, stage="before_train_iter", at=8):
        self.limit, self.stage, self.at = limit, stage, at
        self.stages = []

    def _note(self, runner, stage):
        self.stages.append(stage)
        if stage == self.stage and runner.iter == self.at and self.limit is not None:
            self.limit.before_run(runner)
            self.limit = None
            while not runner.interruption.pending:
                time.sleep(0.001)

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self._note(runner, "before_train_iter")

    @override
    def after_train_epoch(self, runner):
        self._note(runner, "after_train_epoch")

    @override
    def before_val(self, runner):
        self._note(runner, "before_val")

    @override
    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self._note(runner, "after_val_iter")

    @override
    def after_train(self, runner):
        self._note(runner, "after_train")

    @override
    def after_run(self, runner):
        self._note(runner, "after_run")


@pytest.fixture
def whole(make_runner, tmp_path):
    """The parameters of a run that was never stopped."""
    runner = make_runner(work_dir=tmp_path / "whole", **RUN)
    runner.train()
    return parameters(runner)


class Slow(Hook):
    """Leaves threads the time to act."""

    @override
    def before_train(self, runner):
        while not runner.interruption.pending:
            time.sleep(0.001)


def log_of(runner):
    return (runner.log_dir / f"{runner.timestamp}.log").read_text()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("00:00:30", 30),
        ("36:00:00", 36 * 3600),
        ("2-01:02:03", 49 * 3600 + 123),
        (90, 90),
        (0.5, 0.5),
        (timedelta(hours=1), 3600),
    ],
    ids=str,
)
def test_times_are_read(value, seconds):
    assert TimeLimitHook(value).max_time_s == seconds


def test_a_time_in_a_file_needs_no_quotes():
    for text in ("01:30:00", "1:30:00", "5400", "'01:30:00'"):
        cfg = Config.fromstring(f"hook: {{max_time: {text}}}", ".yaml")
        assert TimeLimitHook(cfg.hook.max_time).max_time_s == 5400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_time": "1:30"}, r"TimeLimitHook\.max_time: 'HH:MM:SS'.* got '1:30'"),
        ({"max_time": "00:61:00"}, "got '00:61:00'"),
        ({"max_time": -1}, "got -1"),
        ({"max_time": float("nan")}, "got nan"),
        ({"max_time": True}, "got True"),
        ({"max_time": 1e12}, "got 1000000000000.0"),
        ({"max_time": 0}, "got 0"),
        ({"max_time": 60, "then": "stop"}, r"TimeLimitHook\.then: 'end' or 'requeue'.* 'stop'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_what_is_no_time_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        TimeLimitHook(**arguments)


@pytest.mark.parametrize("by_epoch", [True, False], ids=["epochs", "iterations"])
def test_training_ends_within_an_epoch_as_if_it_were_done_and_goes_on_exactly(
    make_runner, tmp_path, by_epoch
):
    run = RUN if by_epoch else {**RUN, "train_cfg": {"by_epoch": False, "max_iters": 18}}
    undisturbed = make_runner(work_dir=tmp_path / "whole", **run)
    undisturbed.train()
    wait = Wait(TimeLimitHook(0.02))
    hooks = [wait, {"type": "TimeLimitHook", "max_time": "1-00:00:00"}]
    runner = make_runner(**run, custom_hooks=hooks)
    assert runner.train() is runner.model
    assert (runner.iter, runner.max_iters) == (9, 18)
    assert wait.stages[-2:] == ["after_train", "after_run"]
    assert wait.stages.count("after_train_epoch") == by_epoch
    assert load_checkpoint_file(runner.work_dir / "iter_9.pth")["meta"]["iter"] == 9
    assert "step 9 of 18; saved" in log_of(runner)
    assert "training ends in 0:00:00.020000 at the latest" in log_of(runner)
    assert "  ended        the time was up, 9 steps are left" in log_of(runner)
    resumed = make_runner(**run, resume=True)
    resumed.train()
    assert_equal(parameters(resumed), parameters(undisturbed))
    assert "the time was up" not in log_of(resumed)


def test_the_run_leaves_with_the_status_that_asks_for_another_start(make_runner, whole):
    hook = TimeLimitHook(timedelta(seconds=0.02), then="requeue")
    runner = make_runner(**RUN, custom_hooks=[Wait(hook)])
    assert stopped(runner) == 75
    assert runner.iter == 9
    assert "The run was out of time and leaves after epoch 1, step 9, with status 75" in log_of(
        runner
    )
    resumed = make_runner(**RUN, resume=True, custom_hooks=[TimeLimitHook(3600)])
    resumed.train()
    assert_equal(parameters(resumed), whole)


@pytest.mark.parametrize("stage", ["before_val", "after_val_iter"])
def test_a_validation_is_cut_off_and_done_first_when_the_run_is_resumed(make_runner, stage):
    wait = Wait(TimeLimitHook(0.02), stage, at=12)
    ema = {"type": "EMAHook", "momentum": 0.1}
    runner = make_runner(**RUN, custom_hooks=[wait, ema])
    runner.train()
    assert (runner.epoch, runner.iter) == (2, 12)
    assert wait.stages[-2:] == ["after_train", "after_run"]
    assert sorted(path.name for path in runner.work_dir.glob("*.pth")) == [
        "epoch_1.pth",
        "epoch_2.pth",
    ]
    counter = Wait()
    resumed = make_runner(**RUN, resume=True, custom_hooks=[counter, ema])
    resumed.train()
    assert counter.stages[:4] == ["before_val", *["after_val_iter"] * 3]
    undisturbed = make_runner(**RUN, work_dir=runner.work_dir.parent / "ema", custom_hooks=[ema])
    undisturbed.train()
    assert_equal(parameters(resumed), parameters(undisturbed))
    averages = [
        load_checkpoint_file(run.work_dir / "epoch_3.pth")["state_dict"]
        for run in (resumed, undisturbed)
    ]
    assert_equal(*averages)


def test_time_that_is_up_at_once_allows_for_one_step_and_the_next_training_has_it_anew(make_runner):
    runner = make_runner(custom_hooks=[Slow(), TimeLimitHook(1e-6)])
    runner.train()
    assert runner.iter == 1
    longer = make_runner(resume=True, custom_hooks=[TimeLimitHook(3600)])
    longer.train()
    assert longer.iter == 12
    longer.val()  # which is no training


def test_accumulated_gradients_are_taken_in_first(make_runner):
    wrapper = {"optimizer": {"type": "SGD", "lr": 0.1}, "accumulative_counts": 4}
    hooks = [Wait(TimeLimitHook(0.02))]
    runner = make_runner(**RUN, optim_wrapper=wrapper, custom_hooks=hooks)
    runner.train()
    assert runner.iter == 12


def _ranks_end_together(rank, work_dir):
    def run(directory, *hooks, **changes):
        loader = loader_cfg(batch_size=2)
        arguments = {**RUN, "train_dataloader": loader, "launcher": "none", **changes}
        return Runner(
            **runner_arguments(str(work_dir / directory), **arguments, custom_hooks=list(hooks))
        )

    torch.manual_seed(0)
    whole = run("whole")
    whole.train()
    for then, stage, at in (
        ("requeue", "before_train_iter", 7),
        ("end", "after_val_iter", 6),
    ):
        directory = f"{then}-{stage}"
        # The other process has a clock of its own, which nobody asks.
        wait = Wait(TimeLimitHook(0.02 if rank == 0 else 1e-6, then=then), stage, at)
        runner = run(directory, wait)
        if then == "end":
            runner.train()
        else:
            assert stopped(runner) == 75
        iters = [None] * 2
        dist.all_gather_object(iters, runner.iter)
        assert iters[0] == iters[1]
        assert at <= runner.iter < 18
        resumed = run(directory, TimeLimitHook(3600), resume=True)
        resumed.train()
        assert (resumed.epoch, resumed.iter) == (3, 18)
        assert_equal(parameters(resumed), parameters(whole))
    dist.barrier()


def test_ranks_end_after_the_same_step_by_the_first_ones_clock(run_ranks, tmp_path):
    run_ranks(_ranks_end_together, 2, tmp_path)
