"""Stops of runs whose loops are written in MMEngine's way; and stops that come too late."""

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from own_loops import (
    OF_EPOCHS,
    OF_ITERATIONS,
    Elsewhere,
    ElsewhereInIterations,
    InOnePiece,
    Merging,
    MergingIterations,
    OwnAll,
    OwnEpoch,
    OwnEpochAndStep,
    OwnIterations,
    OwnIterationsAndStep,
    OwnRun,
    PassAfterPass,
    train_cfg,
)
from stop_signals import take_usual
from test_interruption import SendAt, _same_on_all, assert_equal, parameters, stopped
from toy import NO_VALIDATION, Classifier, loader_cfg, runner_arguments
from typing_extensions import override

from mm_runner import Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.evaluator import BaseMetric
from mm_runner.hooks import Hook, TimeLimitHook

pytestmark = pytest.mark.usefixtures("handlers")

RUN = {"model": {"type": Classifier, "dropout": 0.3}, **NO_VALIDATION}
VALIDATION = ("val_dataloader", "val_cfg", "val_evaluator")
OWN = [*OF_EPOCHS, *OF_ITERATIONS, Merging, MergingIterations]
each_own = pytest.mark.parametrize("own", OWN, ids=[own.__name__ for own in OWN])


@each_own
@pytest.mark.parametrize("at", [2, 5, 7])
def test_a_signal_saves_leaves_and_is_resumed_exactly(make_runner, tmp_path, own, at):
    options = {**RUN, "train_cfg": train_cfg(own)}
    whole = make_runner(**options, work_dir=tmp_path / "whole")
    whole.train()
    runner = make_runner(**options, custom_hooks=[SendAt(signal.SIGTERM, at=at)])
    assert stopped(runner) == 75
    assert runner.iter == at + 1
    meta = load_checkpoint_file(runner.work_dir / f"iter_{at + 1}.pth")["meta"]
    assert meta["iter"] == at + 1
    resumed = make_runner(**options, resume=True)
    resumed.train()
    assert_equal(parameters(resumed), parameters(whole))
    assert resumed.iter == whole.iter


@pytest.mark.parametrize("own", [Elsewhere, ElsewhereInIterations])
def test_also_where_batches_come_from_elsewhere(make_runner, own):
    runner = make_runner(
        **RUN, train_cfg=train_cfg(own), custom_hooks=[SendAt(signal.SIGTERM, at=7)]
    )
    assert stopped(runner) == 75
    assert runner.iter == 8


@pytest.mark.parametrize("own", [OwnRun, OwnAll, InOnePiece, OwnIterations])
@pytest.mark.parametrize(("at", "num_left"), [(6, 9), (18, 3)])
@pytest.mark.parametrize("way", ["signal", "time"])
def test_a_validation_that_was_cut_off_is_done_again(make_runner, tmp_path, own, at, num_left, way):
    options = {name: value for name, value in RUN.items() if name not in VALIDATION}
    options |= {"train_cfg": train_cfg(own), "param_scheduler": {"type": "ConstantLR"}}
    whole = make_runner(**options, work_dir=tmp_path / "whole", custom_hooks=[SendAt(None)])
    whole.train()
    hook = SendAt(signal.SIGTERM if way == "signal" else None, "after_val_iter", at=at)
    limit = [TimeUp(at)] if way == "time" else []
    runner = make_runner(**options, custom_hooks=[hook, *limit])
    if way == "signal":
        assert stopped(runner) == 75
    else:
        runner.train()
        assert runner.interruption.ran_out_of_time
    num_before = at // 6 * 3 - 3
    assert (runner.iter, hook.batches) == (at, num_before + 1)
    again = SendAt(None)
    resumed = make_runner(**options, custom_hooks=[again], resume=True)
    resumed.train()
    assert again.batches == num_left
    assert_equal(parameters(resumed), parameters(whole))
    finished = SendAt(None)
    make_runner(**options, custom_hooks=[finished], resume=True).train()
    assert finished.batches == 0


class TimeUp(Hook):
    """Lets the time be up in the first batch of a validation."""

    def __init__(self, at):
        self.at = at

    @override
    def before_val_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.at and batch_idx == 0:
            runner.interruption.end_after(0.0, "end")
            deadline = time.monotonic() + 20
            while not runner.interruption.pending:
                assert time.monotonic() < deadline
                time.sleep(0.001)


class Slow(Hook):
    """Waits, after the third step, until the time of a limit is up."""

    ended = 0

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        deadline = time.monotonic() + 20
        while runner.iter >= 2 and not runner.interruption.pending:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @override
    def after_train(self, runner):
        self.ended += 1


@each_own
def test_a_time_limit_ends_it_as_if_it_were_done(make_runner, tmp_path, own):
    options = {**RUN, "train_cfg": train_cfg(own)}
    whole = make_runner(**options, work_dir=tmp_path / "whole")
    whole.train()
    slow = Slow()
    runner = make_runner(**options, custom_hooks=[slow, TimeLimitHook(0.3)])
    assert runner.train() is runner.model
    assert runner.interruption.ran_out_of_time
    assert runner.iter < 18
    assert slow.ended == 1
    resumed = make_runner(**options, resume=True)
    resumed.train()
    assert_equal(parameters(resumed), parameters(whole))


def _run(work_dir, own, **changes):
    arguments = {
        **RUN,
        "train_dataloader": loader_cfg(batch_size=2),
        "train_cfg": train_cfg(own),
        **changes,
    }
    return Runner(**runner_arguments(str(work_dir), **arguments))


def _ranks_leave(rank, work_dir):
    take_usual()
    torch.manual_seed(0)
    for own in (OwnEpoch, OwnEpochAndStep, OwnAll, OwnIterationsAndStep, PassAfterPass, Merging):
        whole = _run(work_dir / f"{own.__name__}-whole", own)
        whole.train()
        directory = work_dir / own.__name__
        runner = _run(
            directory, own, custom_hooks=[SendAt(signal.SIGTERM if rank == 0 else None, at=2)]
        )
        assert stopped(runner) == 75
        assert _same_on_all(runner.iter)
        assert 3 <= runner.iter <= 18
        newest = (directory / "last_checkpoint").read_text().strip()
        assert load_checkpoint_file(directory / newest)["meta"]["iter"] == runner.iter
        resumed = _run(directory, own, resume=True)
        resumed.train()
        assert_equal(parameters(resumed), parameters(whole))
        limited = _run(
            work_dir / f"{own.__name__}-limited", own, custom_hooks=[Slow(), TimeLimitHook(0.3)]
        )
        limited.train()
        assert limited.interruption.ran_out_of_time
        assert _same_on_all(limited.iter)
        assert limited.iter < 18
    dist.barrier()


def test_ranks_leave_together_although_one_was_signalled(run_ranks, tmp_path):
    run_ranks(_ranks_leave, 2, tmp_path)


# Stops that come after the last step.


class Count(BaseMetric):
    @override
    def process(self, data_batch, data_samples):
        self.results.extend(data_batch["labels"].tolist())

    @override
    def compute_metrics(self, results):
        return {"samples": len(results)}


class Late(Hook):
    """Asks the run to leave once it has trained, in one of several ways."""

    priority = "LOWEST"

    def __init__(self, how):
        self.how = how

    @override
    def after_train(self, runner):
        if self.how == "time":
            time.sleep(0.6)
        elif self.how == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
        elif self.how != "thread":
            runner.interruption.preempt()
        if self.how == "failure":
            raise ValueError("after training")


class Deaf(Hook):
    """Asks from a thread that outlives the training."""

    def __init__(self):
        self.go_on = threading.Event()
        self.thread = None

    @override
    def before_run(self, runner):
        if self.thread is None:
            self.thread = threading.Thread(target=self._ask, args=(runner,))
            self.thread.start()

    def _ask(self, runner):
        self.go_on.wait(20)
        runner.interruption.preempt()


def make_late(make_runner, how, *hooks):
    limit = [TimeLimitHook(0.5)] if how == "time" else []
    phases = {"dataloader": loader_cfg(), "cfg": {}, "evaluator": Count()}
    others = {f"{phase}_{name}": one for phase in ("val", "test") for name, one in phases.items()}
    return make_runner(
        train_cfg={"max_epochs": 1, "val_begin": 99},
        custom_hooks=[Late(how), *limit, *hooks],
        **others,
    )


@pytest.mark.parametrize("how", ["preempted", "time", "Ctrl-C", "failure", "thread"])
@pytest.mark.parametrize("phase", ["val", "test"])
def test_a_stop_after_the_last_step_cuts_no_later_evaluation(make_runner, how, phase):
    deaf = Deaf()
    runner = make_late(make_runner, how, *([deaf] if how == "thread" else []))
    if how in ("Ctrl-C", "failure"):
        with pytest.raises(KeyboardInterrupt if how == "Ctrl-C" else ValueError):
            runner.train()
    else:
        runner.train()
    if deaf.thread is not None:
        deaf.go_on.set()
        deaf.thread.join()
    assert not runner.interruption.pending
    assert getattr(runner, phase)() == {"samples": 24}


class Silent(OwnEpoch):
    """Lets hooks act at epochs only."""

    def run_iter(self, idx, data_batch):
        assert idx == self._iter % 6
        self.runner.model.train_step(data_batch, self.runner.optim_wrapper)
        self._iter += 1
        if self._iter == 8 and not self.runner.is_resuming and self.stops:
            self.runner.interruption.preempt()

    stops = True


def test_a_body_whose_steps_hooks_do_not_see_leaves_and_goes_on_exactly(make_runner, tmp_path):
    class Unstopped(Silent):
        stops = False

    whole = make_runner(**RUN, work_dir=tmp_path / "whole", train_cfg=train_cfg(Unstopped))
    whole.train()
    runner = make_runner(**RUN, train_cfg=train_cfg(Silent))
    assert stopped(runner) == 75
    assert runner.iter == 8
    data = load_checkpoint_file(runner.work_dir / "iter_8.pth")["data"]
    assert (data["epoch"], data["batch"], data["iter"]) == (1, 2, 8)
    resumed = make_runner(**RUN, train_cfg=train_cfg(Silent), resume=True)
    resumed.train()
    assert_equal(parameters(resumed), parameters(whole))


def test_a_step_that_failed_after_it_was_noted_is_not_counted(make_runner):
    class RefusedError(Exception):
        pass

    class Refuse(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            if batch_idx == 2:
                raise RefusedError

        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if batch_idx == 3:
                runner.save_checkpoint(runner.work_dir, "after.pth")

    class Patient(OwnEpochAndStep):
        def run_iter(self, idx, data_batch):
            try:
                super().run_iter(idx, data_batch)
            except RefusedError:
                self.runner.logger.warning("left out")

    runner = make_runner(**RUN, train_cfg=train_cfg(Patient), custom_hooks=[Refuse()])
    runner.train()
    assert runner.iter == 15
    assert load_checkpoint_file(runner.work_dir / "after.pth")["meta"]["iter"] == 12
