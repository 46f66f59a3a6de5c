"""Which hook takes how much of a step."""

import time

import pytest
from toy import NO_VALIDATION, log_of
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.diagnostics import HookTimesHook
from mm_runner.hooks import Hook

_SLOW_S = 0.1


class Slow(Hook):
    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        time.sleep(_SLOW_S)

    @override
    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        time.sleep(_SLOW_S)


class SlowBefore(Hook):
    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        time.sleep(_SLOW_S / 4)


def assert_nothing_is_timed(runner):
    for stage, methods in runner.hooks_list.methods.items():
        acting = [getattr(one, stage) for one in runner.hooks if type(one).acts_at(stage)]
        assert methods == acting


def test_the_slowest_hooks_are_logged_without_validations(make_runner):
    runner = make_runner(
        custom_hooks=[Slow(), SlowBefore(), HookTimesHook(begin=4, iters=4)],
        default_hooks={"checkpoint": None},
    )
    runner.train()
    assert_nothing_is_timed(runner)
    (line,) = [one for one in log_of(runner).splitlines() if "HookTimesHook: " in one]
    assert "in 4 steps" in line
    logged = line.partition("most of it: ")[2].split("; ")
    names = [one.split()[0] for one in logged]
    assert names[:2] == ["Slow.after_train_iter", "SlowBefore.before_train_iter"]
    assert not any("after_val_iter" in name for name in names)
    micros = float(logged[0].split()[1].replace(",", ""))
    assert _SLOW_S <= micros / 1e6 < 2 * _SLOW_S


@pytest.mark.parametrize(("begin", "message"), [(8, "in 4 steps"), (100, "in 0 steps")])
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

    runner = make_runner(custom_hooks=[Fails(), HookTimesHook(begin=2)], **NO_VALIDATION)
    with pytest.raises(ArithmeticError):
        runner.train()
    assert_nothing_is_timed(runner)


def test_wrong_arguments_are_named():
    message = r"HookTimesHook\.begin: an integer >= 1 is needed, got 0"
    with pytest.raises(ConfigError, match=message):
        HookTimesHook(begin=0)
