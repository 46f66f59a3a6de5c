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
        own, others = (
            ", ".join(name or "a single one" for name in one) for one in (wrappers, by_name)
        )
        raise ConfigError(
            f"param_schedulers: they are for {others}, and optim_wrapper is {own}. Of several "
            "wrappers they are a dict of lists by name, of a single one a list."
        )
    for name, group in by_name.items():
        known = {id(one) for one in wrappers[name].param_groups}
        for one in group:
            needed = ("by_epoch", "load_state_dict", "need_val_args", "state_dict", "step")
            missing = [attribute for attribute in needed if not hasattr(one, attribute)]
            if missing:
                raise ConfigError(
                    f"param_schedulers: {type(one).__name__} has no {', no '.join(missing)}; give "
                    "its config, dict(type=...), which a schedule is built from."
                )
            # By groups: an optimizer around another one, such as one that shards, shares them.
            groups = getattr(getattr(one, "optimizer", None), "param_groups", None)
            if groups is not None and known.isdisjoint(map(id, groups)):
                raise ConfigError(
                    f"param_schedulers: the schedules assigned{f' for {name}' if name else ''} are "
                    f"over another {type(one.optimizer).__name__} than the one that is trained "
                    "with. Assign their config, param_schedulers = [dict(type=...)]; or assign "
                    "optim_wrapper first, and build them then."
                )


def fit_to_length(
    runner: Runner,
    name: str,
    schedulers: Sequence[Any],
    states: Sequence[Mapping[str, Any]],
    num_iters: int,
) -> None:
    """Set restored schedules to the values of a run of this length, where it has changed."""
    if not all(isinstance(one, ParamScheduler) for one in schedulers):
        return  # custom schedules
    changed = [
        (one, state["window"])
        for one, state in zip(schedulers, states, strict=True)
        if state.get("window", one.window) != one.window
    ]
    # One that follows a metric has no course to repeat.
    if not changed or any(one.need_val_args for one in schedulers):
        return
    first, window = changed[0]
    group = named_wrappers(runner.optim_wrapper)[name].optimizer.param_groups[0]
    before = _value(group, first.setting)
    replay(schedulers, num_iters, _epoch_length(runner))
    runner.logger.info(
        f"{first.where} acts from {first.window[0]:,} to {first.window[1]:,} now, and did from "
        f"{window[0]:,} to {window[1]:,}: schedules{f' of {name}' if name else ''} continue as if "
        f"that had been so from the start ({first.setting} {before:.4g} -> "
        f"{_value(group, first.setting):.4g})."
    )


def _value(group: Mapping[str, Any], setting: str) -> float:
    return float(group[setting] if setting in group else group["betas"][0])


def _epoch_length(runner: Runner) -> int | None:
    """Return the steps of a pass over the training data, ``None`` if they have no length."""
    loader = runner.train_dataloader
    length: int | None = None
    with suppress(TypeError):
        length = len(loader)
    if length and is_endless(loader):  # its sampler counts the samples of all processes
        return max(length // runner.world_size, 1)
    return length or None
