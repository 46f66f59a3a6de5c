"""Training loops of subclasses that override ``run``, ``run_epoch``'s parts or ``__init__``."""

import time

import pytest
import torch
from own_loops import OwnStep
from test_resume_midway import StopAfter, assert_alike, state_of
from toy import NO_VALIDATION, Blobs, Classifier, Killed, loader_cfg
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.evaluator import Accuracy
from mm_runner.hooks import Hook, TimeLimitHook
from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop, ValLoop

RUN = {
    "model": {"type": Classifier, "dropout": 0.5},
    "train_dataloader": loader_cfg(dataset=Blobs(24, noise=0.5)),
    "default_hooks": {"checkpoint": {"by_epoch": False, "interval": 1, "max_keep_ckpts": 1}},
}


class OwnRun(EpochBasedTrainLoop):
    """MMEngine's way to go through the epochs, with its names."""

    def run(self):
        self.runner.call_hook("before_train")
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            self._decide_current_val_interval()
            if self.runner.val_loop is not None:
                self.runner.val_loop.run()
        self.runner.call_hook("after_train")
        return self.runner.model


class OwnStepOfIterations(IterBasedTrainLoop):
    def run_iter(self, data_batch):
        runner, idx = self.runner, self._iter
        runner.call_hook("before_train_iter", batch_idx=idx, data_batch=data_batch)
        outputs = runner.model.train_step(data_batch, optim_wrapper=runner.optim_wrapper)
        runner.call_hook("after_train_iter", batch_idx=idx, data_batch=data_batch, outputs=outputs)
        self.iter += 1


class OwnBoth(OwnRun, OwnStep):
    pass


class Mixed(EpochBasedTrainLoop):
    """Changes each batch, and leaves the rest to the loop of ours."""

    def run_iter(self, idx, data_batch):
        super().run_iter(idx, {**data_batch, "inputs": data_batch["inputs"] + 0})


OURS = {EpochBasedTrainLoop: {"max_epochs": 3}, IterBasedTrainLoop: {"max_iters": 18}}
LOOPS = [
    (OwnRun, EpochBasedTrainLoop),
    (OwnStep, EpochBasedTrainLoop),
    (OwnBoth, EpochBasedTrainLoop),
    (Mixed, EpochBasedTrainLoop),
    (OwnStepOfIterations, IterBasedTrainLoop),
]
each_loop = pytest.mark.parametrize(("own", "ours"), LOOPS, ids=[own.__name__ for own, _ in LOOPS])


@each_loop
@pytest.mark.parametrize("validates", [True, False], ids=["validation", "training"])
def test_a_loop_written_for_mmengine_trains_as_ours_does(make_runner, own, ours, validates):
    more = {} if validates else NO_VALIDATION
    states = []
    for kind in (ours, own):
        runner = make_runner(**RUN, **more, train_cfg={"type": kind, **OURS[ours]})
        runner.train()
        states.append(state_of(runner))
    assert runner.iter == 18
    assert_alike(*states)


@each_loop
def test_it_goes_on_exactly_from_the_middle_of_an_epoch(make_runner, tmp_path, own, ours):
    options = {**RUN, **NO_VALIDATION, "train_cfg": {"type": own, **OURS[ours]}}
    whole = make_runner(**options, work_dir=tmp_path / "whole")
    whole.train()
    expected = state_of(whole)
    with pytest.raises(Killed):
        make_runner(**options, custom_hooks=[StopAfter(8)]).train()
    resumed = make_runner(**options, resume=True)
    resumed.train()
    assert_alike(state_of(resumed), expected)


class Slow(Hook):
    """Waits in a step or a validation until the time of a limit is up; notes the last stages."""

    def __init__(self, stage):
        self.stage, self.ended = stage, 0

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self._wait(runner, "step")

    @override
    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self._wait(runner, "validation")

    @override
    def after_train(self, runner):
        self.ended += 1

    def _wait(self, runner, stage):
        deadline = time.monotonic() + 20
        while stage == self.stage and not runner.interruption.pending:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("stage", ["step", "validation"])
@pytest.mark.parametrize("own", [OwnRun, OwnBoth, OwnStep])
def test_a_time_limit_ends_it_as_if_it_were_done(make_runner, own, stage):
    slow = Slow(stage)
    cfg = {"type": own, "max_epochs": 3}
    runner = make_runner(**RUN, train_cfg=cfg, custom_hooks=[slow, TimeLimitHook(0.05)])
    assert runner.train() is runner.model
    assert runner.interruption.ran_out_of_time
    assert 1 <= runner.iter < 18
    assert slow.ended == 1


def test_a_batch_that_is_left_out_is_no_step(make_runner):
    class Choosy(OwnStep):
        def run_iter(self, idx, data_batch):
            if idx % 2 == 0:
                super().run_iter(idx, data_batch)

    runner = make_runner(**RUN, **NO_VALIDATION, train_cfg={"type": Choosy, "max_epochs": 2})
    runner.train()
    assert (runner.epoch, runner.iter) == (2, 6)
    assert runner.train_loop.state_dict()["iter"] == 6


def test_a_loop_may_ask_for_itself_as_it_is_built(make_runner):
    class Curious(EpochBasedTrainLoop):
        def __init__(self, runner, dataloader, max_epochs):
            self.found = runner.train_loop, runner.val_loop
            super().__init__(runner, dataloader, max_epochs)

    runner = make_runner(train_cfg={"type": Curious, "max_epochs": 1})
    runner.train()
    assert runner.train_loop.found == (None, runner.val_loop)
    early = make_runner(train_cfg={"type": Curious, "max_epochs": 1})
    assert early.train_loop.found == (None, early.val_loop)


@pytest.mark.parametrize("asked", ["train_dataloader", "val_dataloader", "val_evaluator"])
def test_a_loop_that_asks_the_run_for_its_own_loader_is_told(make_runner, asked):
    class Training(EpochBasedTrainLoop):
        def __init__(self, runner, dataloader, max_epochs):
            super().__init__(runner, dataloader, max_epochs)
            self.found = getattr(runner, asked)

    class Validating(ValLoop):
        def __init__(self, runner, dataloader, evaluator):
            super().__init__(runner, dataloader, evaluator)
            self.found = getattr(runner, asked)

    phase = asked.partition("_")[0]
    cfg = (
        {"train_cfg": {"type": Training, "max_epochs": 1}}
        if phase == "train"
        else {"val_cfg": {"type": Validating}}
    )
    runner = make_runner(**cfg)
    message = rf"was asked for while the {phase} loop, whose it is, is being built\. .*'dataloader'"
    for _ in range(2):
        with pytest.raises(ConfigError, match=message):
            runner.train()
    with pytest.raises(ConfigError, match=message):
        runner.build_loop(phase)


def test_an_evaluation_loop_may_ask_for_the_other_phases(make_runner):
    class Looking(ValLoop):
        def __init__(self, runner, dataloader, evaluator):
            super().__init__(runner, dataloader, evaluator)
            self.length = len(runner.train_dataloader)

    runner = make_runner(val_cfg={"type": Looking}, val_evaluator=Accuracy())
    assert torch.is_tensor(next(iter(runner.val_dataloader))["inputs"])
    assert runner.val_loop.length == 6
