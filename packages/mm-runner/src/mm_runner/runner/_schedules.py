"""Schedules of a run: built, checked, and fitted to another length on resume."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mm_runner.data import is_endless
from mm_runner.errors import ConfigError
from mm_runner.optim import (
    ParamScheduler,
    build_param_schedulers,
    named_schedulers,
    named_wrappers,
)
from mm_runner.optim.schedules import replay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ._runner import Runner

__all__ = ["build_schedules", "check_schedules", "fit_to_length"]

_OF_SCHEDULE = ("by_epoch", "load_state_dict", "need_val_args", "state_dict", "step")


def build_schedules(runner: Runner, scheduler: Any) -> Any:
    """Build schedules over the run's ``optim_wrapper``; of several wrappers, by name.

    Raises:
        ConfigError: If there is no ``optim_wrapper`` yet, or the config does not fit.
    """
    runner.recipe.check_phase("train", "build_param_scheduler()")
    if runner.optim_wrapper is None:
        raise ConfigError(
            "build_param_scheduler() was called before optim_wrapper is built, whose settings it "
            "schedules. In a script: runner.optim_wrapper = runner.build_optim_wrapper(cfg)."
        )
    epoch_length = _epoch_length(runner)  # builds the training loop, which has the other lengths
    return build_param_schedulers(
        runner.optim_wrapper,
        scheduler,
        num_epochs=runner.max_epochs,
        num_iters=runner.max_iters,
        epoch_length=epoch_length,
    )


def check_schedules(optim_wrapper: Any, schedules: Any) -> None:
    """Check that schedules can be saved, and are over the optimizers that are trained with.

    Raises:
        ConfigError: If not.
    """
    wrappers, by_name = named_wrappers(optim_wrapper), named_schedulers(schedules)
    if not by_name.keys() <= wrappers.keys():
        raise ConfigError(
            f"param_schedulers: they are for {_names(by_name)}, and optim_wrapper is "
            f"{_names(wrappers)}. Of several wrappers they are a dict of lists by name, of a "
            "single one a list."
        )
    for name, group in by_name.items():
        for one in group:
            missing = [attribute for attribute in _OF_SCHEDULE if not hasattr(one, attribute)]
            if missing:
                raise ConfigError(
                    f"param_schedulers: {type(one).__name__} has no {', no '.join(missing)}; give "
                    "its config, dict(type=...), which a schedule is built from."
                )
            if _is_over_another(wrappers[name], one):
                raise ConfigError(
                    f"param_schedulers: the schedules assigned{f' for {name}' if name else ''} are "
                    f"over another {type(one.optimizer).__name__} than the one that is trained "
                    "with. Assign their config, param_schedulers = [dict(type=...)]; or assign "
                    "optim_wrapper first, and build them then."
                )


def _is_over_another(wrapper: Any, schedule: Any) -> bool:
    groups = getattr(getattr(schedule, "optimizer", None), "param_groups", None)
    # By their groups: an optimizer around another one, as those that shard, shares them.
    return groups is not None and {*map(id, groups)}.isdisjoint(map(id, wrapper.param_groups))


def _names(parts: Mapping[str, Any]) -> str:
    return ", ".join(name or "a single one" for name in parts) or "none"


def fit_to_length(
    runner: Runner,
    name: str,
    schedulers: Sequence[Any],
    states: Sequence[Mapping[str, Any]],
    num_iters: int,
) -> None:
    """Set restored schedules to the values of a run of this length, where it has changed."""
    if not all(isinstance(one, ParamScheduler) for one in schedulers):
        return  # of the user's own
    changed = [
        (one, state["window"])
        for one, state in zip(schedulers, states, strict=True)
        if state.get("window", one.window) != one.window
    ]
    # One that follows a metric has no course to repeat.
    if not changed or any(one.need_val_args for one in schedulers):
        return
    why = _describe(runner, *changed[0])
    groups = named_wrappers(runner.optim_wrapper)[name].optimizer.param_groups
    settings = dict.fromkeys(one.setting for one in schedulers)
    before = {setting: _values(groups, setting) for setting in settings}
    replay(schedulers, num_iters, _epoch_length(runner))
    changes = [_change(setting, old, _values(groups, setting)) for setting, old in before.items()]
    runner.logger.info(
        f"{why}: schedules{f' of {name}' if name else ''} go on as if that had been so from "
        f"the start ({', '.join(changes)})."
    )


def _describe(runner: Runner, scheduler: ParamScheduler, before: Sequence[int]) -> str:
    now, in_epochs = scheduler.window, getattr(runner.train_loop, "by_epoch", True)
    unit = "epochs" if in_epochs else "iterations"
    if before[0] == now[0] and now[1] == (runner.max_epochs if in_epochs else runner.max_iters):
        return f"The run is {now[1]:,} {unit} long now, and was {before[1]:,}"
    return (
        f"{scheduler.where} acts from {now[0]:,} to {now[1]:,} now, and did from {before[0]:,} to "
        f"{before[1]:,}"
    )


def _values(groups: Sequence[Mapping[str, Any]], setting: str) -> list[float]:
    return [float(group[setting] if setting in group else group["betas"][0]) for group in groups]


def _change(setting: str, before: Sequence[float], after: Sequence[float]) -> str:
    """Describe the first group that has another value, or the first one."""
    pairs = list(zip(before, after, strict=True))
    old, new = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return f"{setting} {old:.4g} -> {new:.4g}" if old != new else f"{setting} stays {old:.4g}"


def _epoch_length(runner: Runner) -> int | None:
    """Return the steps of a pass over the training data, ``None`` if they have no length."""
    loader = runner.train_dataloader
    length: int | None = None
    with suppress(TypeError):
        length = len(loader)
    if length and is_endless(loader):  # its sampler counts the samples of all processes
        return max(length // runner.world_size, 1)
    return length or None
