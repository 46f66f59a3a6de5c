"""Loops of a user's own train, call hooks, and resume; the log says from where."""

import os
import signal

import pytest
import torch
from own_loops import OF_EPOCHS, OF_ITERATIONS, OwnAll, OwnEpochAndStep, ours_of, train_cfg
from test_resume_midway import Seen, StopAfter, assert_alike, state_of
from toy import NO_VALIDATION, Blobs, Killed, StopBeforeEpoch, loader_cfg
from typing_extensions import override

from mm_runner.errors import RunStopped
from mm_runner.hooks import Hook
from mm_runner.loops import BaseLoop
from mm_runner.registry import LOOPS

ALL = [*OF_EPOCHS, *OF_ITERATIONS]
# Their bodies take every step through run_iter of this package, or our body draws the batches.
RESUMED_WITHIN = [one for one in ALL if one not in (OwnEpochAndStep, OwnAll)]
NOISY = {"train_dataloader": loader_cfg(dataset=Blobs(noise=0.5))}


def trained(make_runner, loop, *hooks, resume=False, **more):
    runner = make_runner(
        train_cfg=train_cfg(loop), custom_hooks=list(hooks), resume=resume, **{**NOISY, **more}
    )
    runner.train()
    return runner


@pytest.mark.parametrize("loop", ALL)
def test_an_own_loop_trains_and_calls_hooks_as_ours(make_runner, loop):
    own_seen, ours_seen = Seen(), Seen()
    own = trained(make_runner, loop, own_seen)
    expected = trained(make_runner, ours_of(loop), ours_seen)
    assert own_seen.steps == ours_seen.steps
    assert_alike(own.model.state_dict(), expected.model.state_dict())
    assert (own.epoch, own.iter) == (expected.epoch, expected.iter)


@pytest.mark.parametrize("loop", RESUMED_WITHIN)
def test_a_loop_through_our_run_iter_resumes_after_the_last_step(make_runner, loop):
    whole = Seen()
    expected = state_of(trained(make_runner, loop, whole, **NO_VALIDATION))
    seen = Seen()
    with pytest.raises(Killed):
        trained(make_runner, loop, seen, StopAfter(8), **NO_VALIDATION)
    torch.manual_seed(99)
    resumed = trained(make_runner, loop, seen, resume=True, **NO_VALIDATION)
    assert [step[1:] for step in seen.steps] == [step[1:] for step in whole.steps]
    assert_alike(state_of(resumed), expected)


@pytest.mark.parametrize("loop", OF_EPOCHS)
def test_an_own_loop_resumes_after_the_last_whole_epoch(make_runner, loop):
    whole = Seen()
    expected = state_of(trained(make_runner, loop, whole, **NO_VALIDATION))
    seen = Seen()
    with pytest.raises(Killed):
        trained(make_runner, loop, seen, StopBeforeEpoch(2), **NO_VALIDATION)
    torch.manual_seed(99)
    resumed = trained(make_runner, loop, seen, resume=True, **NO_VALIDATION)
    assert seen.steps == whole.steps
    assert_alike(state_of(resumed), expected)


def test_a_checkpoint_within_an_epoch_that_cannot_be_resumed_there_is_announced(
    make_runner, capsys
):
    with pytest.raises(Killed):
        trained(make_runner, OwnEpochAndStep, StopAfter(8), **NO_VALIDATION)
    said = " ".join(capsys.readouterr().out.split())
    assert "resumes at the beginning of the epoch" in said
    seen = Seen()
    runner = trained(make_runner, OwnEpochAndStep, seen, resume=True, **NO_VALIDATION)
    assert [index for index, *_ in seen.steps] == [*range(6), *range(6)]
    assert (runner.epoch, runner.iter) == (3, 20)


class Terminate(Hook):
    """Sends this process SIGTERM after a step."""

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == 8:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("loop", "steps"), [(OF_EPOCHS[0], 8), (OwnAll, 12)])
def test_a_stop_is_honoured_after_the_step_or_else_after_the_epoch(make_runner, loop, steps):
    expected = trained(make_runner, loop, **NO_VALIDATION).model.state_dict()
    with pytest.raises(RunStopped):
        trained(make_runner, loop, Terminate(), **NO_VALIDATION)
    runner = make_runner(train_cfg=train_cfg(loop), resume=True, **NOISY, **NO_VALIDATION)
    seen = Seen()
    runner.register_hook(seen)
    runner.train()
    assert len(seen.steps) == 18 - steps
    assert_alike(runner.model.state_dict(), expected)


@LOOPS.register_module()
class TwoBatches(BaseLoop):
    """Trains by itself, two batches of each pass."""

    def __init__(self, runner, dataloader, max_epochs):
        super().__init__(runner, dataloader)
        self.max_epochs, self.max_iters = max_epochs, 2 * max_epochs
        self._epoch = self._iter = 0

    epoch = property(lambda self: self._epoch)
    iter = property(lambda self: self._iter)

    def run(self):
        runner = self._runner
        step, call_hook = runner.model.train_step, runner.call_hook
        call_hook("before_train")
        while self._epoch < self.max_epochs:
            call_hook("before_train_epoch")
            for idx, batch in zip(range(2), self.dataloader, strict=False):
                call_hook("before_train_iter", batch_idx=idx, data_batch=batch)
                outputs = step(batch, optim_wrapper=runner.optim_wrapper)
                call_hook("after_train_iter", batch_idx=idx, data_batch=batch, outputs=outputs)
                self._iter += 1
            call_hook("after_train_epoch")
            self._epoch += 1
        call_hook("after_train")


def test_a_loop_that_derives_from_the_base_trains_and_resumes_at_its_counts(make_runner):
    cfg = {"type": "TwoBatches", "max_epochs": 2}
    expected = make_runner(train_cfg=cfg, **NO_VALIDATION, **NOISY)
    expected.train()
    assert (expected.epoch, expected.iter) == (2, 4)
    with pytest.raises(Killed):
        make_runner(
            train_cfg=cfg,
            **NO_VALIDATION,
            **NOISY,
            custom_hooks=[StopBeforeEpoch(1)],
            overwrite=True,
        ).train()
    resumed = make_runner(train_cfg=cfg, **NO_VALIDATION, **NOISY, resume=True)
    resumed.train()
    assert (resumed.epoch, resumed.iter) == (2, 4)
    assert_alike(resumed.model.state_dict(), expected.model.state_dict())


def test_such_a_loop_says_that_it_repeats_the_batches_of_an_epoch(make_runner, capsys):
    cfg = {"type": "TwoBatches", "max_epochs": 2}
    with pytest.raises(Killed):
        make_runner(train_cfg=cfg, **NO_VALIDATION, custom_hooks=[StopAfter(3)]).train()
    make_runner(train_cfg=cfg, **NO_VALIDATION, resume=True).train()
    said = " ".join(capsys.readouterr().out.split())
    assert "within epoch 2, and TwoBatches trains whole epochs: it repeats" in said


def test_the_base_builds_a_loader_of_its_config(make_runner):
    runner = make_runner()
    assert len(TwoBatches(runner, loader_cfg(), max_epochs=1).dataloader) == 6
