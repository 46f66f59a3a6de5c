"""Optimizer wrappers, schedules and loops that a hook assigns, and what goes by them."""

import pytest
from toy import NO_VALIDATION, RecordRates
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.hooks import Hook

WARM_UP = {"type": "LinearLR", "start_factor": 0.5, "by_epoch": False, "end": 4}
WRAPPER = {"optimizer": {"type": "SGD", "lr": 0.8}}


class At(Hook):
    """Acts once, at a stage."""

    priority = "VERY_HIGH"

    def __init__(self, stage, act):
        self.stage, self.act = stage, act

    @override
    def before_run(self, runner):
        self._at("before_run", runner)

    @override
    def before_train(self, runner):
        self._at("before_train", runner)

    @override
    def after_train_epoch(self, runner):
        self._at("after_train_epoch", runner)

    def _at(self, stage, runner):
        if self.stage == stage:
            self.stage = None
            self.act(runner)


def rates_with(make_runner, act, stage="before_run", **options):
    rates = RecordRates()
    runner = make_runner(**NO_VALIDATION, **options, custom_hooks=[At(stage, act), rates])
    runner.train()
    return [round(rate, 6) for rate in rates.rates], runner


def rates_of(make_runner, **options):
    return rates_with(make_runner, lambda _: None, **options)[0]


@pytest.mark.parametrize("built", [True, False], ids=["built", "config"])
def test_a_wrapper_of_a_hook_is_scaled_and_scheduled_as_a_configured_one(make_runner, built):
    options = {
        "param_scheduler": WARM_UP,
        "auto_scale_lr": {"base_batch_size": 8, "enable": True},
    }
    expected = rates_of(make_runner, optim_wrapper=WRAPPER, **options)
    assert expected[0] == 0.2

    def assign(runner):
        runner.optim_wrapper = runner.build_optim_wrapper(WRAPPER) if built else WRAPPER
        assert runner.optim_wrapper.param_groups[0]["lr"] == 0.8

    rates, runner = rates_with(make_runner, assign, **options)
    assert rates == expected
    runner.train()
    assert runner.optim_wrapper.get_lr()["lr"] == pytest.approx([0.05])


def test_a_wrapper_of_a_hook_is_checked(make_runner):
    def assign(runner):
        runner.optim_wrapper = make_runner().build_optim_wrapper(WRAPPER)

    with pytest.raises(ConfigError, match=r"^optim_wrapper: none of the 4 parameters of its SGD"):
        rates_with(make_runner, assign)


def test_a_loop_of_a_hook_says_how_long_schedules_are(make_runner):
    cosine = {"type": "CosineAnnealingLR", "by_epoch": False}
    loop = {"by_epoch": False, "max_iters": 5}
    expected = rates_of(make_runner, train_cfg=loop, param_scheduler=[WARM_UP, cosine])

    def assign(runner):
        runner.train_loop = loop

    got = rates_with(make_runner, assign, param_scheduler=[WARM_UP, cosine])[0]
    assert got == expected
    assert len(got) == 5


def test_schedules_of_a_hook_take_the_place_of_the_configured_ones(make_runner):
    later = {**WARM_UP, "start_factor": 0.25}
    expected = rates_of(make_runner, param_scheduler=later)

    def assign(runner):
        runner.param_schedulers = later

    assert rates_with(make_runner, assign, param_scheduler=WARM_UP)[0] == expected

    def take_away(runner):
        runner.param_schedulers = []

    assert rates_with(make_runner, take_away, param_scheduler=WARM_UP)[0] == [0.1] * 12


@pytest.mark.parametrize("how", ["list", "tuple", "one"])
def test_schedules_built_over_those_that_have_begun_are_refused(make_runner, how):
    def assign(runner):
        built = runner.build_param_scheduler(WARM_UP)
        runner.param_schedulers = {"list": built, "tuple": tuple(built), "one": built[0]}[how]

    with pytest.raises(ConfigError, match=r"^param_schedulers: the schedules assigned were built"):
        rates_with(make_runner, assign, param_scheduler=WARM_UP)
    assert rates_with(make_runner, assign)[0] == rates_of(make_runner, param_scheduler=WARM_UP)
    step = {"type": "MultiStepLR", "milestones": [1]}  # which has changed nothing yet
    assert rates_with(make_runner, assign, param_scheduler=step)[0][0] == 0.05


def test_schedules_that_are_put_to_others_count(make_runner):
    step = {"type": "MultiStepLR", "milestones": [1], "gamma": 0.5}
    expected = rates_of(make_runner, param_scheduler=[WARM_UP, step])

    def add(runner):
        runner.param_schedulers.extend(runner.build_param_scheduler(step))

    assert rates_with(make_runner, add, param_scheduler=WARM_UP)[0] == expected

    rates = RecordRates()
    runner = make_runner(**NO_VALIDATION, custom_hooks=[rates])
    runner.optim_wrapper = runner.build_optim_wrapper(WRAPPER)
    add(runner)
    runner.train()
    assert rates.rates == pytest.approx([0.8] * 6 + [0.4] * 6)


def test_rates_that_a_hook_has_set_stay(make_runner):
    def assign(runner):
        runner.optim_wrapper.param_groups[0]["lr"] = 0.7
        runner.param_schedulers = []

    assert rates_with(make_runner, assign, param_scheduler=WARM_UP)[0] == [0.7] * 12


def test_a_wrapper_may_be_assigned_while_training(make_runner):
    def assign(runner):
        runner.optim_wrapper = WRAPPER

    def assign_both(runner):
        assign(runner)
        runner.param_schedulers = {"type": "ConstantLR", "factor": 0.5, "end": 9}

    stage = "after_train_epoch"
    rates, runner = rates_with(make_runner, assign, stage, param_scheduler=WARM_UP)
    assert rates[5:] == [0.1] + [0.8] * 6
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert "the schedules go on changing the one before it" in log
    rates, runner = rates_with(make_runner, assign_both, stage, param_scheduler=WARM_UP)
    assert rates[5:] == [0.1] + [0.4] * 6


@pytest.mark.parametrize("stage", ["before_train", "after_train_epoch"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("train_loop", {"max_epochs": 1}, "train_loop was assigned while one is training"),
        ("optim_wrapper", None, "optim_wrapper: None was assigned in a training"),
        ("optim_wrapper", 3, "optim_wrapper: an optim wrapper or a dict is needed, got 3"),
        ("param_schedulers", 3, "param_scheduler: a dict with the key 'type' is needed, got 3"),
    ],
)
def test_what_cannot_be_used_any_more_is_refused_at_once(make_runner, stage, name, value, message):
    def assign(runner):
        with pytest.raises(ConfigError, match=f"^{message}"):
            setattr(runner, name, value)
        raise ConfigError("told")

    with pytest.raises(ConfigError, match=r"^told"):
        rates_with(make_runner, assign, stage)
