"""Which hook takes how much of a step."""

import re
import time

import pytest
from toy import NO_VALIDATION
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.diagnostics import HookTimesHook
from mm_runner.hooks import Hook

_SLOW_S = 0.02


class Slow(Hook):
    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        time.sleep(_SLOW_S)


class SlowBefore(Hook):
    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        time.sleep(_SLOW_S / 2)


def assert_nothing_is_timed(runner):
    for stage, methods in runner.hooks_list.methods.items():
        acting = [getattr(one, stage) for one in runner.hooks if type(one).acts_at(stage)]
        assert methods == acting


def log_of(runner):
    return next(runner.log_dir.glob("*.log")).read_text()


def train_timed(make_runner, *hooks, **overrides):
    timing = HookTimesHook(begin=2, iters=4)
    overrides = {"default_hooks": {"checkpoint": None}, **NO_VALIDATION, **overrides}
    runner = make_runner(custom_hooks=[*hooks, timing], **overrides)
    runner.train()
    assert_nothing_is_timed(runner)
    return log_of(runner)


def test_the_slowest_hooks_are_logged(make_runner):
    log = train_timed(make_runner, Slow(), SlowBefore())
    (line,) = [one for one in log.splitlines() if "HookTimesHook: of" in one]
    assert "in 4 steps" in line
    logged = line.partition("most of it: ")[2].split("; ")
    assert [one.split()[0] for one in logged][:2] == ["Slow", "SlowBefore"]
    assert "after_train_iter" in logged[0]
    micros = float(logged[0].split()[1].replace(",", ""))
    assert _SLOW_S <= micros / 1e6 < 2 * _SLOW_S


def test_a_validation_in_the_window_is_no_part_of_its_steps(make_runner):
    class SlowToValidate(Hook):
        @override
        def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            time.sleep(50 * _SLOW_S)

    runner = make_runner(
        custom_hooks=[SlowToValidate(), HookTimesHook(begin=2, iters=4)],
        train_cfg={"by_epoch": False, "max_iters": 10, "val_interval": 4},
    )
    runner.train()
    (step,) = re.findall(r"of ([\d,]+) us per step", log_of(runner))
    # Of 150 that the validation took, in four steps.
    assert float(step.replace(",", "")) / 1e6 < 25 * _SLOW_S


@pytest.mark.parametrize(("begin", "message"), [(8, "in 4 steps"), (100, "nothing was timed")])
def test_a_training_that_ends_early_logs_what_was_timed(make_runner, begin, message):
    runner = make_runner(custom_hooks=[HookTimesHook(begin=begin, iters=99)], **NO_VALIDATION)
    runner.train()
    assert message in log_of(runner)


def test_a_step_that_fails_in_the_window_leaves_the_hooks_as_they_were(make_runner):
    class Fails(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            if runner.iter == 4:
                raise ArithmeticError

    timing = HookTimesHook(begin=2)
    runner = make_runner(custom_hooks=[Fails(), timing], **NO_VALIDATION)
    with pytest.raises(ArithmeticError):
        runner.train()
    assert_nothing_is_timed(runner)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"begin": 0}, r"HookTimesHook\.begin: an integer >= 1 is needed, got 0"),
        ({"iters": 1.5}, r"HookTimesHook\.iters: .* got 1\.5"),
    ],
    ids=["begin", "iters"],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        HookTimesHook(**options)
