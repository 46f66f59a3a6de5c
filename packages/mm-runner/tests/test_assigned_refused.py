"""What is assigned to a Runner and cannot train ends in one clear error, before training begins."""

import pytest
import torch
from toy import NO_VALIDATION, Classifier, RecordRates
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop

HALVED = {"type": "ConstantLR", "factor": 0.5, "end": 2}


class OnlyRun:
    def run(self): ...


class Unsettable(OnlyRun):
    max_epochs = max_iters = 9
    epoch = iter = property(lambda _: 0)

    def __init__(self, runner):
        self.dataloader = runner.train_dataloader


class Started(Hook):
    """Tells whether a training has come to its first stage."""

    def __init__(self):
        self.is_so = False

    @override
    def before_train(self, runner):
        self.is_so = True


REFUSED = [
    ("train_loop", lambda _: object(), r"^train_loop: <object .* a loop, which has run\(\)"),
    ("train_loop", lambda _: 3, r"^train_loop: 3 was assigned; .*runner\.build_train_loop\(cfg\)"),
    ("val_loop", lambda _: "ValLoop", r"^val_loop: 'ValLoop' was assigned; a loop, which has run"),
    ("test_loop", lambda _: {}, r"^build_test_loop\(\) was called; the Runner got no test_datal"),
    ("train_loop", lambda _: OnlyRun(), r"^train_loop: OnlyRun has no dataloader, no epoch, .*Epo"),
    ("train_loop", lambda _: {"max_epoch": 3}, r"^train_cfg\.max_epoch"),
    ("optim_wrapper", lambda _: "SGD", r"^optim_wrapper: .* needed, got 'SGD'"),
    ("optim_wrapper", lambda _: {"type": "OptimWrapper"}, r"^optim_wrapper"),
    ("param_schedulers", lambda _: 3, r"^param_scheduler: a dict with the key 'type' is needed"),
    ("param_schedulers", lambda _: "StepLR", r"^param_scheduler: .* needed, got 'StepLR'"),
    ("param_schedulers", lambda _: [HALVED, 3], r"^param_scheduler\[1\]: .* needed, got 3"),
    ("param_schedulers", lambda _: {"end": 2}, r"^param_scheduler"),
    ("param_schedulers", lambda _: {"generator": [HALVED]}, r"^param_scheduler"),
    ("param_schedulers", lambda _: {"generator": []}, r"^param_schedulers: they are for generator"),
    (
        "param_schedulers",
        lambda run: [
            torch.optim.lr_scheduler.StepLR(run.build_optim_wrapper(ADAM).optimizer, step_size=1)
        ],
        r"^param_schedulers: StepLR has no by_epoch, no need_val_args; give its config",
    ),
]
ADAM = {"optimizer": {"type": "Adam"}}


@pytest.mark.parametrize("by_hook", [False, True], ids=["script", "hook"])
@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_it_is_refused(make_runner, name, value, message, by_hook):
    started = Started()

    class Assign(Hook):
        @override
        def before_run(self, runner):
            if by_hook:
                setattr(runner, name, value(runner))

    runner = make_runner(custom_hooks=[Assign(), started])

    def assign_and_train():
        if not by_hook:
            setattr(runner, name, value(runner))
        runner.train()

    with pytest.raises(ConfigError, match=message):
        assign_and_train()
    assert not started.is_so
    assert not list(runner.log_dir.glob("crash*"))


def test_a_loop_that_cannot_be_set_to_where_a_checkpoint_is_is_told(make_runner):
    runner = make_runner(**NO_VALIDATION)
    runner.train()
    runner.resume(runner.work_dir / "epoch_1.pth")
    runner.train_loop = Unsettable(runner)
    with pytest.raises(ConfigError, match=r"^train_loop: Unsettable\.epoch has to become 1"):
        runner.train()


def test_schedules_over_the_wrapper_of_a_training_before_are_refused(make_runner):
    rates = RecordRates()
    runner = make_runner(**NO_VALIDATION, custom_hooks=[rates], param_scheduler=HALVED)
    runner.train()
    later = {**HALVED, "factor": 0.25}
    runner.param_schedulers = runner.build_param_scheduler(later)
    with pytest.raises(ConfigError, match=r"^param_schedulers: the schedules assigned are over"):
        runner.train()
    rates.rates.clear()
    runner.param_schedulers = later
    runner.train()
    assert rates.rates == pytest.approx([0.025] * 6 + [0.1] * 6)


def test_schedules_that_are_put_to_those_of_a_training_before_are_refused(make_runner):
    runner = make_runner(**NO_VALIDATION, param_scheduler=HALVED)
    runner.train()
    runner.param_schedulers += runner.build_param_scheduler(HALVED)
    with pytest.raises(ConfigError, match=r"^param_schedulers: the schedules assigned are over"):
        runner.train()


def test_schedules_of_several_wrappers_are_given_by_name(make_runner):
    model = torch.nn.ModuleDict({"generator": Classifier(), "critic": Classifier()})
    model.train_step = model.val_step = lambda *_, **__: {"loss": torch.zeros(())}
    both = {name: {"type": "OptimWrapper", **ADAM} for name in model}
    runner = make_runner(
        **NO_VALIDATION,
        model=model,
        default_hooks={"logger": None, "checkpoint": None},
        optim_wrapper={"constructor": "MultiOptimWrapperConstructor", **both},
    )
    runner.optim_wrapper = runner.build_optim_wrapper(runner._train["optim_wrapper"])
    schedules = runner.build_param_scheduler(HALVED)
    runner.param_schedulers = schedules["generator"]
    with pytest.raises(ConfigError, match=r"are for a single one, and optim_wrapper is generator"):
        runner.train()
    runner.param_schedulers = {"critic": schedules["generator"]}
    with pytest.raises(ConfigError, match=r"schedules assigned for critic are over another Adam"):
        runner.train()
    runner.param_schedulers = schedules
    runner.train()
    assert runner.iter == 12


def test_a_configured_loop_is_looked_at_as_well(make_runner):
    class Half(EpochBasedTrainLoop):
        @property
        def max_iters(self):
            raise AttributeError("max_iters")

        @max_iters.setter
        def max_iters(self, value): ...

    runner = make_runner(train_cfg={"type": Half, "max_epochs": 1})
    with pytest.raises(ConfigError, match=r"^train_loop: Half has no max_iters; derive it"):
        runner.train()
