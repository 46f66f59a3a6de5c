"""Which hook takes how much of a step."""

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


def train_timed(make_runner, *hooks, **overrides):
    timing = HookTimesHook(begin=2, iters=4)
    overrides = {"default_hooks": {"checkpoint": None}, **NO_VALIDATION, **overrides}
    runner = make_runner(custom_hooks=[*hooks, timing], **overrides)
    runner.train()
    assert_nothing_is_timed(runner)
    return timing, next(runner.log_dir.glob("*.log")).read_text()


def test_the_dearest_hooks_are_told_and_one_that_slows_the_step_is_warned_of(make_runner):
    timing, log = train_timed(make_runner, Slow(), SlowBefore())
    assert timing.times["Slow"].keys() == {"after_train_iter"}
    assert _SLOW_S <= timing.times["Slow"]["after_train_iter"] < 2 * _SLOW_S
    assert _SLOW_S / 2 <= timing.times["SlowBefore"]["before_train_iter"] < _SLOW_S
    assert 1.5 * _SLOW_S < timing.step_s < 5 * _SLOW_S
    (line,) = [one for one in log.splitlines() if "HookTimesHook: of" in one]
    assert " WARNING " in line
    assert "in 4 steps" in line
    logged = line.partition("most of it: ")[2].split("; ")
    assert [one.split()[0] for one in logged][:2] == ["Slow", "SlowBefore"]
    assert "after_train_iter" in logged[0]


def test_a_validation_in_the_window_is_no_part_of_its_steps(make_runner):
    class SlowToValidate(Hook):
        @override
        def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            time.sleep(50 * _SLOW_S)

    timing = HookTimesHook(begin=2, iters=4)
    make_runner(
        custom_hooks=[SlowToValidate(), timing],
        train_cfg={"by_epoch": False, "max_iters": 10, "val_interval": 4},
    ).train()
    assert 0 < timing.step_s < 25 * _SLOW_S  # of 150 that the validation took, in four steps
    assert "SlowToValidate" not in timing.times


def test_a_training_that_ends_early_tells_what_was_timed(make_runner):
    timing = HookTimesHook(begin=8, iters=100)
    runner = make_runner(custom_hooks=[timing], **NO_VALIDATION)
    runner.train()
    assert "in 4 steps" in next(runner.log_dir.glob("*.log")).read_text()
    for begin in (100,):
        timing = HookTimesHook(begin=begin)
        runner = make_runner(custom_hooks=[timing], **NO_VALIDATION)
        runner.train()
        assert timing.times == {}
        log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
        told = f"HookTimesHook: nothing was timed: training ended after 12 steps, and begin={begin}"
        assert log.count(told) == 1


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
