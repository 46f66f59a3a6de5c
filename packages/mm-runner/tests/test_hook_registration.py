"""Hooks that are registered while a run is under way."""

import pytest
from toy import loader_cfg

from mm_runner import ConfigError
from mm_runner.hooks import Hook


def hook_at(stage, act, **attributes):
    """Return a hook that calls ``act(runner)`` at ``stage``."""
    method = {stage: lambda _self, runner, *_, **__: act(runner)}
    return type("Acting", (Hook,), {**method, **attributes})()


@pytest.mark.parametrize(
    ("stage", "times"),
    [
        ("before_train", 1),
        ("before_train_iter", 4),
        ("after_train_epoch", 2),
        ("after_val_iter", 4),
    ],
)
@pytest.mark.parametrize("priority", ["HIGHEST", "LOWEST"])
def test_a_hook_registered_in_a_stage_acts_from_its_next_call_on(
    make_runner, stage, times, priority
):
    log = []

    def add(runner):
        log.append("adding")
        if log.count("adding") == 1:
            late = hook_at(stage, lambda _: log.append("late"), priority=priority)
            runner.register_hook(late)

    hooks = [hook_at(stage, add), hook_at(stage, lambda _: log.append("behind"))]
    loaders = {f"{phase}_dataloader": loader_cfg(size=8) for phase in ("train", "val")}
    make_runner(custom_hooks=hooks, **loaders).train()
    own = ["adding", "behind"]
    both = ["late", *own] if priority == "HIGHEST" else [*own, "late"]
    assert log == own + both * (times - 1)


def test_a_hook_registered_between_two_trainings_acts_in_the_second(make_runner):
    log = []
    runner = make_runner(train_cfg={"max_epochs": 1})
    runner.train()
    runner.register_hook(hook_at("before_train_iter", lambda run: log.append(run.iter)))
    assert log == []
    runner.train()
    assert log == [0, 1, 2, 3, 4, 5]


def test_hooks_are_listed_stage_by_stage(make_runner):
    runner = make_runner(
        default_hooks={"checkpoint": None, "logger": None, "param_scheduler": None},
        custom_hooks=[hook_at("before_train", print, priority=45)],
    )
    stages = dict(part.split(":\n") for part in runner.get_hooks_info().split("\n\n"))
    assert stages["before_train"].splitlines() == [
        "(VERY_HIGH   ) RuntimeInfoHook",
        "(45          ) Acting",
        "(NORMAL      ) IterTimerHook",
    ]
    assert stages["before_train_epoch"].splitlines() == [
        "(NORMAL      ) IterTimerHook",
        "(NORMAL      ) DistSamplerSeedHook",
    ]
    assert "after_load_checkpoint" not in stages


def test_hooks_that_have_it_act_at_a_stage_of_the_users_own(make_runner):
    class AtSwap(Hook):
        def after_swap(self, runner, part):
            log.append((runner.iter, part))

    log = []
    runner = make_runner(custom_hooks=[AtSwap()])
    runner.call_hook("after_swap", part="head")
    assert log == [(0, "head")]
    runner.call_hook("after_what_no_hook_has")


def test_several_are_registered_at_once_as_objects_or_configs(make_runner):
    log = []
    runner = make_runner()
    late = hook_at("before_train", lambda _: log.append("late"), priority="LOWEST")
    early = hook_at("before_train", lambda _: log.append("early"), priority="HIGHEST")
    runner.register_custom_hooks([late, early, {"type": "EmptyCacheHook", "priority": "LOW"}])
    runner.train()
    assert log == ["early", "late"]
    assert "EmptyCacheHook" in {type(hook).__name__ for hook in runner.hooks}


@pytest.mark.parametrize("given", [{"type": "EmptyCacheHook"}, "EmptyCacheHook", None])
def test_one_hook_is_no_list_of_hooks(make_runner, given):
    with pytest.raises(ConfigError, match=r"register_custom_hooks: a list of hooks is needed"):
        make_runner().register_custom_hooks(given)


def test_a_method_that_is_nearly_a_stage_is_warned_of(make_runner):
    class Slip(Hook):
        def after_train_step(self, runner): ...

        def count_after_train(self): ...

    with pytest.warns(UserWarning, match=r"Slip\.after_train_step .*'after_train_iter'") as told:
        make_runner(custom_hooks=[Slip()])
    assert len(told) == 1
