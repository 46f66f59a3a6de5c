from types import SimpleNamespace

import pytest
from toy import loader_cfg

from mm_runner import ComponentNotFoundError, ConfigError
from mm_runner import hooks as all_hooks
from mm_runner.hooks import (
    STAGES,
    Hook,
    HookList,
    LoggerHook,
    build_hooks,
    priority_of,
)
from mm_runner.registry import HOOKS

DEFAULTS = [
    "RuntimeInfoHook",
    "IterTimerHook",
    "DistSamplerSeedHook",
    "LoggerHook",
    "ParamSchedulerHook",
    "CheckpointHook",
    "CrashBundleHook",
]


def _call(hooks, stage, runner=None, **arguments):
    for act in hooks.methods[stage]:
        act(runner, **arguments)


def class_names(hooks):
    return [type(hook).__name__ for hook in hooks]


def record(log, name, *stages, **attributes):
    """A hook that notes its name in ``log`` at each of ``stages``."""

    def act(_self, _runner, **_):
        log.append(name)

    return type(name, (Hook,), {**dict.fromkeys(stages, act), **attributes})()


@pytest.mark.parametrize(
    ("priority", "level"),
    [("HIGHEST", 0), ("very_low", 90), ("Normal", 50), (42, 42), (100, 100)],
    ids=["highest", "lower-case", "title", "number", "largest"],
)
def test_priority_of_reads_names_and_numbers(priority, level):
    assert priority_of(priority) == level


@pytest.mark.parametrize("priority", ["LOWW", -1, 101, 1.5, None])
def test_priority_of_says_what_there_is(priority):
    with pytest.raises(ConfigError, match=r"from 0 to 100 or one of HIGHEST, .*LOWEST"):
        priority_of(priority)
    with pytest.raises(ConfigError, match="Did you mean 'LOW'"):
        priority_of("LOWW")


def test_hooks_act_by_priority_then_in_the_order_added():
    log = []
    hooks = HookList()
    for name, own, given in [
        ("B", "NORMAL", None),
        ("C", "NORMAL", None),
        ("D", "HIGHEST", "LOWEST"),
        ("A", 10, None),
    ]:
        hooks.add(record(log, name, "before_run", priority=own), given)
    _call(hooks, "before_run", None)
    assert log == ["A", "B", "C", "D"]
    assert class_names(hooks.hooks) == ["A", "B", "C", "D"]


def test_a_stage_that_no_hook_uses_calls_nothing():
    log = []
    hooks = HookList()
    hooks.add(record(log, "One", "before_train"))
    hooks.add(Hook())
    assert {stage for stage, methods in hooks.methods.items() if methods} == {"before_train"}
    for stage in STAGES:
        _call(hooks, stage, None)
    assert log == ["One"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("unit", ["epoch", "iter"])
def test_a_common_stage_is_called_for_every_mode(when, unit):
    modes = []

    class Common(Hook):
        pass

    def act(_self, _runner, *_, mode="train", **__):
        modes.append(mode)

    setattr(Common, f"_{when}_{unit}", act)
    hooks = HookList()
    hooks.add(Common())
    arguments = {"batch_idx": 0, "data_batch": None} if unit == "iter" else {}
    for mode in ("train", "val", "test"):
        _call(hooks, f"{when}_{mode}_{unit}", None, **arguments)
    assert modes == ["train", "val", "test"]
    expected = {f"{when}_{mode}_{unit}" for mode in ("train", "val", "test")}
    assert {stage for stage in STAGES if Common.acts_at(stage)} == expected


def test_a_hook_lists_the_stages_at_which_it_acts():
    hook = record([], "Both", "after_val_epoch", "before_train", "_after_iter")
    assert hook.get_triggered_stages() == [
        "before_train",
        "after_train_iter",
        "after_val_iter",
        "after_val_epoch",
        "after_test_iter",
    ]
    assert Hook().get_triggered_stages() == []
    assert Hook().state_dict() == {}


def test_every_hook_of_ours_is_found_by_its_name():
    given = [getattr(all_hooks, name) for name in all_hooks.__all__]
    kinds = {kind for kind in given if isinstance(kind, type) and issubclass(kind, Hook)}
    # The base has no use by name, and the Runner adds the report.
    for kind in kinds - {Hook, all_hooks.CompileReportHook}:
        assert HOOKS.get(kind.__name__) is kind


def test_the_helpers_of_mmengines_hooks_count_from_one():
    hook = Hook()
    runner = SimpleNamespace(epoch=3, iter=7, max_epochs=4, max_iters=8)
    assert [hook.every_n_epochs(runner, n) for n in (2, 3, 4, -1)] == [True, False, True, False]
    # The start itself is the first, whatever the interval.
    starts = range(6)
    assert [hook.every_n_epochs(runner, 3, start=one) for one in starts] == [0, 1, 0, 0, 1, 0]
    assert [hook.every_n_epochs(runner, n, start=4) for n in (1, 3, 0, -1)] == [1, 1, 0, 0]
    assert [hook.every_n_train_iters(runner, n) for n in (3, 4, 0)] == [False, True, False]
    found = [hook.every_n_train_iters(runner, 3, start=one) for one in (2, 5, 7, 8, 9)]
    assert found == [True, True, False, True, False]
    assert [hook.every_n_inner_iters(i, 3) for i in (1, 2)] == [False, True]
    assert hook.is_last_train_epoch(runner)
    assert hook.is_last_train_iter(runner)
    assert hook.end_of_epoch([1, 2], 1)
    assert not hook.end_of_epoch([1, 2], 0)


def test_default_hooks_stand_in_mmengines_order():
    hooks = build_hooks(None, None).hooks
    assert class_names(hooks) == DEFAULTS
    assert [hook.priority for hook in hooks] == [10, 50, 50, 60, 70, 90, 100]
    assert hooks[5].interval == 1


def test_default_hooks_are_changed_replaced_and_removed_by_name():
    class Timer(Hook):
        pass

    hooks = build_hooks({"logger": {"interval": 3}, "timer": Timer(), "checkpoint": None}, None)
    assert class_names(hooks.hooks) == [DEFAULTS[0], "Timer", *DEFAULTS[2:5], DEFAULTS[6]]
    assert hooks.hooks[3].interval == 3
    assert hooks.hooks[1].priority == 50


@pytest.mark.parametrize(
    ("default", "custom", "error", "message"),
    [
        (
            {"cheskpoint": None},
            None,
            ConfigError,
            r"default_hooks\.cheskpoint: there is no such.*Did you mean 'checkpoint'.*'type'",
        ),
        ({"logger": 3}, None, ConfigError, r"default_hooks\.logger: a .*Hook or a dict.*got 3"),
        (
            {"logger": {"intervall": 3}},
            None,
            ConfigError,
            r"default_hooks\.logger\.intervall: unknown argument of LoggerHook.*'interval'",
        ),
        (None, [dict], ConfigError, r"custom_hooks\[0\]: a mm_runner\.hooks\.Hook or.*'dict'"),
        (None, [{"interval": 1}], ConfigError, r"custom_hooks\[0\]: the key 'type' is missing"),
        (
            None,
            [{"type": "CheckpointHok"}],
            ComponentNotFoundError,
            r"No hook named 'CheckpointHok'.*Did you mean 'CheckpointHook'",
        ),
    ],
    ids=["unknown-default", "no-hook", "argument", "class", "no-type", "unknown-type"],
)
def test_wrong_hooks_are_named_by_their_path(default, custom, error, message):
    with pytest.raises(error, match=message):
        build_hooks(default, custom)


@pytest.mark.parametrize("interval", [0, -1, 1.5, True], ids=str)
def test_logger_hook_needs_a_positive_interval(interval):
    with pytest.raises(ConfigError, match=r"LoggerHook\.interval: an integer >= 1 is needed, got"):
        LoggerHook(interval)


def test_a_run_passes_every_stage_in_order(make_runner):
    log = []

    class Everything(Hook):
        priority = "LOWEST"

    for stage in STAGES:
        setattr(Everything, stage, lambda _self, _runner, _stage=stage, **_: log.append(_stage))

    runner = make_runner(
        train_cfg={"max_epochs": 1},
        train_dataloader=loader_cfg(size=9, batch_size=9),
        custom_hooks=[Everything()],
    )
    runner.train()
    runner.val()
    evaluation = [
        "before_val",
        "before_val_epoch",
        *["before_val_iter", "after_val_iter"] * 3,
        "after_val_epoch",
        "after_val",
    ]
    assert log == [
        "before_run",
        "before_train",
        "before_train_epoch",
        "before_train_iter",
        "after_train_iter",
        "before_save_checkpoint",
        "after_train_epoch",
        *evaluation,
        "after_train",
        "after_run",
        "before_run",
        *evaluation,
        "after_run",
    ]


def test_a_hook_may_be_registered_by_its_config(make_runner):
    class Own(Hook):
        priority = "LOW"

        def __init__(self, name="own"):
            self.name = name

    class Adding(Hook):
        def before_train(self, runner):
            runner.register_hook({"type": Own, "name": "late"})

    runner = make_runner(custom_hooks=[Adding()], train_cfg={"by_epoch": True, "max_epochs": 1})
    given = {"type": Own, "name": "both", "priority": "HIGHEST"}
    runner.register_hook(given, priority="LOWEST")
    runner.register_hook({"type": "EMAHook", "momentum": 0.5, "priority": 20})
    runner.register_hook(dict(given, name="key"))
    assert given == {"type": Own, "name": "both", "priority": "HIGHEST"}
    runner.train()
    found = {getattr(one, "name", type(one).__name__): one.priority for one in runner.hooks}
    assert {name: found[name] for name in ("both", "EMAHook", "key", "late")} == {
        "both": 100,
        "EMAHook": 20,
        "key": 0,
        "late": 70,
    }
    assert [one.priority for one in runner.hooks] == sorted(one.priority for one in runner.hooks)
