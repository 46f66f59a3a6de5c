"""How long what is assigned to a Runner counts: until a training that used it has ended well."""

import pytest
from test_resume_midway import assert_alike, state_of
from toy import NO_VALIDATION, Blobs, Classifier, Killed, RecordRates, loader_cfg
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.errors import RunStopped
from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop

ADAM = {"optimizer": {"type": "Adam", "lr": 0.5}}
HALVED = {"type": "ConstantLR", "factor": 0.5, "by_epoch": False, "end": 100}


class FailOnce(Hook):
    """Fails the first training, before or in its third step."""

    def __init__(self, stage):
        self.stage = stage

    @override
    def before_run(self, runner):
        self._fail("before_run")

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 2:
            self._fail("step")

    def _fail(self, stage):
        if self.stage == stage:
            self.stage = None
            raise Killed


class FailAt(Hook):
    """Fails in a step, once."""

    def __init__(self, step):
        self.step = step

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 == self.step:
            self.step = None
            raise Killed


class LeaveOnce(Hook):
    """Lets the first training leave after a step, as SIGTERM would."""

    def __init__(self, step):
        self.step = step

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.step:
            self.step = None
            runner.interruption.preempt()


def log_of(runner):
    return (runner.log_dir / f"{runner.timestamp}.log").read_text()


@pytest.mark.parametrize("stage", ["before_run", "step"])
def test_a_training_that_failed_leaves_it_for_the_next(make_runner, stage):
    rates = RecordRates()
    runner = make_runner(
        **NO_VALIDATION,
        param_scheduler=HALVED,
        auto_scale_lr={"base_batch_size": 8, "enable": True},
        custom_hooks=[FailOnce(stage), rates],
    )
    wrapper = runner.build_optim_wrapper({"optimizer": {"type": "SGD", "lr": 0.8}})
    loop = IterBasedTrainLoop(runner, runner.train_dataloader, max_iters=5)
    runner.optim_wrapper, runner.train_loop = wrapper, loop
    with pytest.raises(Killed):
        runner.train()
    rates.rates.clear()
    runner.train()
    assert runner.optim_wrapper is wrapper
    assert runner.train_loop is loop
    # From its beginning, and neither scaled nor scheduled a second time.
    assert (runner.iter, rates.rates) == (5, pytest.approx([0.2] * 5))
    assert ("goes on as the training that failed left it" in log_of(runner)) == (stage == "step")
    runner.train()
    assert runner.iter == 12


def test_a_config_is_built_anew_after_a_failure(make_runner):
    runner = make_runner(**NO_VALIDATION, custom_hooks=[FailOnce("step")])
    runner.optim_wrapper = ADAM
    with pytest.raises(Killed):
        runner.train()
    failed = runner.optim_wrapper
    runner.train()
    assert type(runner.optim_wrapper.optimizer) is type(failed.optimizer)
    assert runner.optim_wrapper is not failed
    assert "left it" not in log_of(runner)


def test_a_failure_of_the_last_hooks_keeps_it_too(make_runner):
    class FailAtEnd(FailOnce):
        @override
        def after_run(self, runner):
            self._fail("after_run")

    runner = make_runner(**NO_VALIDATION, custom_hooks=[FailAtEnd("after_run")])
    runner.train_loop = {"by_epoch": False, "max_iters": 3}
    with pytest.raises(Killed):
        runner.train()
    runner.train()
    assert runner.iter == 3


@pytest.mark.parametrize("kind", [EpochBasedTrainLoop, IterBasedTrainLoop])
@pytest.mark.parametrize("by", ["script", "hook", "asked-for"])
def test_a_stop_that_is_caught_goes_on_exactly_with_it(make_runner, tmp_path, kind, by):
    length = {"max_epochs": 3} if kind is EpochBasedTrainLoop else {"max_iters": 18}

    def assign(runner):
        runner.train_loop = kind(runner, runner.train_dataloader, **length)
        runner.optim_wrapper = runner.build_optim_wrapper(ADAM)

    class AssignOnce(Hook):
        def __init__(self):
            self.is_done = False

        @override
        def before_run(self, runner):
            if not self.is_done and by == "hook":
                assign(runner)
            self.is_done = True

    def begun(name, *hooks):
        cfg = {"type": kind, **dict.fromkeys(length, 30)}
        runner = make_runner(
            **NO_VALIDATION,
            work_dir=tmp_path / name,
            model={"type": Classifier, "dropout": 0.5},
            train_dataloader=loader_cfg(dataset=Blobs(24, noise=0.5)),
            train_cfg=cfg if by == "asked-for" else {"max_epochs": 2},
            param_scheduler=HALVED,
            custom_hooks=[AssignOnce(), *hooks],
        )
        if by == "script":
            assign(runner)
        elif by == "asked-for":
            for attribute, value in {"max_iters": 18, **length}.items():
                setattr(runner.train_loop, attribute, value)
        return runner

    whole = begun("whole")
    whole.train()
    runner = begun("run", LeaveOnce(8))
    with pytest.raises(RunStopped):
        runner.train()
    assert runner.iter == 8
    runner.train()
    assert (runner.iter, type(runner.train_loop)) == (18, kind)
    assert_alike(state_of(runner), state_of(whole))


def test_a_second_stop_leaves_the_data_in_the_order_of_the_first(make_runner, tmp_path):
    """Without its data a resumed run draws in an order of its own, which is kept from then on."""
    seen = {}

    def go(name, *hooks):
        runner = make_runner(
            **NO_VALIDATION,
            work_dir=tmp_path / name,
            train_dataloader=loader_cfg(dataset=Blobs(24, noise=0.5)),
            load_from=str(tmp_path / "first" / "epoch_1.pth"),
            resume=True,
            cfg={"resume_data": False},
            custom_hooks=[*hooks],
        )
        runner.train_loop = runner.build_train_loop({"max_epochs": 4})
        while runner.iter < 24:
            try:
                runner.train()
            except RunStopped:
                continue
        seen[name] = state_of(runner)

    make_runner(**NO_VALIDATION, work_dir=tmp_path / "first").train()
    go("whole")
    go("stopped", LeaveOnce(9), LeaveOnce(15))
    assert_alike(seen["stopped"], seen["whole"])


def test_a_failure_leaves_nothing_of_the_data_in_the_loop(make_runner, tmp_path):
    places, resuming = [], []

    class Save(Hook):
        @override
        def before_train(self, runner):
            runner.save_checkpoint(tmp_path, "begin.pth", mark_as_latest=False)
            places.append(load_checkpoint_file(tmp_path / "begin.pth")["data"])
            resuming.append(runner.is_resuming)

    make_runner(**NO_VALIDATION, work_dir=tmp_path / "first").train()
    runner = make_runner(
        **NO_VALIDATION,
        load_from=str(tmp_path / "first" / "epoch_1.pth"),
        resume=True,
        cfg={"resume_data": False},
        custom_hooks=[Save(), FailAt(8)],
    )
    runner.train_loop = runner.build_train_loop({"by_epoch": False, "max_iters": 10})
    with pytest.raises(Killed):
        runner.train()
    runner.train()
    fresh = make_runner(**NO_VALIDATION, custom_hooks=[Save()])
    fresh.train_loop = fresh.build_train_loop({"by_epoch": False, "max_iters": 10})
    fresh.train()
    assert places[0] != places[1] == places[2]
    assert resuming == [True, False, False]
    assert runner.iter == 10


def test_after_a_failure_other_schedules_may_be_assigned(make_runner):
    rates = RecordRates()
    runner = make_runner(
        **NO_VALIDATION, param_scheduler=HALVED, custom_hooks=[FailOnce("before_run"), rates]
    )
    with pytest.raises(Killed):
        runner.train()
    runner.optim_wrapper = runner.build_optim_wrapper({"optimizer": {"type": "SGD", "lr": 0.8}})
    runner.param_schedulers = runner.build_param_scheduler(HALVED)
    runner.train()
    assert rates.rates == pytest.approx([0.4] * 12)


def test_a_loop_that_was_told_to_stop_early_trains_again(make_runner):
    class Enough(Hook):
        def __init__(self):
            self.is_asked = True

        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            runner.train_loop.stop_training |= self.is_asked and runner.iter == 2

    enough = Enough()
    runner = make_runner(**NO_VALIDATION, custom_hooks=[enough])
    loop = runner.train_loop = runner.build_train_loop({"by_epoch": False, "max_iters": 5})
    runner.train()
    assert runner.iter == 3
    enough.is_asked = False
    runner.train_loop = loop
    runner.train()
    assert runner.iter == 5


@pytest.mark.parametrize("kind", [EpochBasedTrainLoop, IterBasedTrainLoop])
def test_a_loop_with_a_body_of_its_own_begins_anew_after_a_failure(make_runner, kind):
    def run(self):
        runner = self.runner
        runner.call_hook("before_train")
        runner.call_hook("before_train_epoch")
        by_epoch = kind is EpochBasedTrainLoop
        for index, batch in enumerate(self.dataloader if by_epoch else self.dataloader_iterator):
            runner.call_hook("before_train_iter", batch_idx=index, data_batch=batch)
            runner.model.train_step(batch, runner.optim_wrapper)
            drawn[-1].extend(batch["labels"].tolist())
            runner.call_hook("after_train_iter", batch_idx=index, data_batch=batch, outputs={})
            self._iter += 1
            if self.iter == 6:
                break
        runner.call_hook("after_train_epoch")
        self._epoch += 1
        runner.call_hook("after_train")

    drawn, length = [], {"max_epochs": 1} if kind is EpochBasedTrainLoop else {"max_iters": 6}
    own = type("Own", (kind,), {"run": run, "__module__": __name__})
    options = {**NO_VALIDATION, "default_hooks": {"logger": None}}
    runner = make_runner(**options, custom_hooks=[FailOnce("step")])
    runner.train_loop = runner.build_train_loop({"type": own, **length})
    drawn.append([])
    with pytest.raises(Killed):
        runner.train()
    drawn.append([])
    runner.train()
    assert drawn[0] == drawn[1][:12]
    assert len(drawn[1]) == 24
    assert (runner.iter, runner.train_loop.state_dict()["iter"]) == (6, 6)


def test_assigning_the_same_again_is_assigning(make_runner):
    rates = RecordRates()
    runner = make_runner(
        **NO_VALIDATION,
        auto_scale_lr={"base_batch_size": 8, "enable": True},
        custom_hooks=[rates],
    )
    wrapper = runner.build_optim_wrapper({"optimizer": {"type": "SGD", "lr": 0.8}})
    for _ in range(3):
        runner.optim_wrapper = wrapper
        runner.train()
        assert runner.optim_wrapper is wrapper
    assert rates.rates == [0.4] * 36  # scaled once
    runner.train()
    assert runner.optim_wrapper is not wrapper


def test_a_loop_that_is_assigned_again_goes_on_or_is_told_to_be_at_its_end(make_runner):
    runner = make_runner(**NO_VALIDATION)
    loop = runner.train_loop
    runner.train()
    runner.train_loop = loop
    with pytest.raises(ConfigError, match=r"^train_loop: the Epoch.* steps, 2 and 1"):
        runner.train()
    loop.max_epochs = 3
    runner.train_loop = loop
    runner.train()
    assert (runner.epoch, runner.iter) == (3, 18)
    runner.train_loop = loop
    loop.epoch = loop.iter = 0
    runner.train_loop = loop
    runner.train()
    assert (runner.epoch, runner.iter) == (3, 18)


def test_a_loop_of_ones_own_begins_anew_too(make_runner):
    class Plain:
        """A loop of MMEngine's kind, with nothing of ours."""

        max_epochs, stop_training = 1, False

        def __init__(self, runner):
            self.runner, self.dataloader = runner, runner.train_dataloader
            self.max_iters = len(self.dataloader)
            self._epoch = self._iter = 0

        epoch = property(lambda self: self._epoch)
        iter = property(lambda self: self._iter)

        def run(self):
            runner = self.runner
            runner.call_hook("before_train")
            for index, batch in enumerate(self.dataloader):
                runner.call_hook("before_train_iter", batch_idx=index, data_batch=batch)
                runner.model.train_step(batch, runner.optim_wrapper)
                runner.call_hook("after_train_iter", batch_idx=index, data_batch=batch)
                self._iter += 1
            runner.call_hook("after_train")

    rates = RecordRates()
    runner = make_runner(
        **NO_VALIDATION,
        default_hooks={"logger": None, "checkpoint": None},
        custom_hooks=[FailOnce("step"), rates],
    )
    runner.train_loop = Plain(runner)
    with pytest.raises(Killed):
        runner.train()
    runner.train()
    assert (runner.iter, len(rates.rates)) == (6, 9)
