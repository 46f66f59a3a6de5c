"""Whether what was assigned to the Runner can train, told before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError
from mm_runner.loops import AbstractTrainLoop, EpochBasedTrainLoop, IterBasedTrainLoop, uncounted
from mm_runner.optim import named_schedulers, named_wrappers

if TYPE_CHECKING:
    from mm_runner.runner import Runner

    from ._lazy_loops import EarlyTrainLoop

__all__ = [
    "are_schedules",
    "as_listed",
    "check_loop",
    "check_schedules",
    "check_seed_of_loop",
    "check_steps_left",
    "drives_another",
    "listed",
    "set_place",
]

# What the Runner and its hooks ask of a training loop, and of a schedule.
_OF_LOOP = ("run", "dataloader", "epoch", "iter", "max_epochs", "max_iters")
_OF_SCHEDULE = ("load_state_dict", "state_dict", "step")
_OF_STEPPED = ("by_epoch", "load_state_dict", "need_val_args", "state_dict", "step")


def check_loop(loop: Any) -> None:
    """Check that a training loop has what the Runner and its hooks ask of it.

    Raises:
        ConfigError: If not.
    """
    missing = [name for name in _OF_LOOP if not hasattr(loop, name)]
    if missing:
        raise ConfigError(
            f"train_loop: {type(loop).__name__} has no {', no '.join(missing)}; derive it from "
            "mm_runner.loops.EpochBasedTrainLoop or IterBasedTrainLoop, or give it these."
        )


def check_seed_of_loop(runner: Runner, loop: Any, early: EarlyTrainLoop | None) -> None:
    """Check that an assigned loop draws its data by the seed that the run has by now.

    Args:
        runner: The run.
        loop: What was assigned.
        early: The loop that was asked for before it, whose batches it may have.

    Raises:
        ConfigError: If not.
    """
    if early is not None and uncounted(loop.dataloader) is uncounted(early.loop.dataloader):
        early.check_seed(runner)
    seed = loop.batches.seed if isinstance(loop, AbstractTrainLoop) else runner.seed
    if seed != runner.seed:
        raise ConfigError(
            f"train_loop was built with the seed {seed}, and that of the run is now {runner.seed}: "
            "its data would come in another order. Build it after what changes the seed, such as "
            "resume() and set_randomness(); with resume=True by runner.build_train_loop(cfg)."
        )


def check_steps_left(loop: Any) -> None:
    """Check that an assigned loop, which goes on from where it stands, is not at its end.

    Raises:
        ConfigError: If it is.
    """
    by_epoch = isinstance(loop, EpochBasedTrainLoop) and loop.epoch >= loop.max_epochs
    if by_epoch or (isinstance(loop, IterBasedTrainLoop) and loop.iter >= loop.max_iters):
        raise ConfigError(
            f"train_loop: the {type(loop).__name__} that was assigned has done all of its epochs "
            f"and steps, {loop.epoch} and {loop.iter}. Assign a new one, as "
            "runner.build_train_loop(cfg) returns it, or set its epoch and iter to 0."
        )


def set_place(loop: Any, epoch: int, iteration: int) -> None:
    """Let a loop begin after so many epochs and steps, and forget what it did before.

    Raises:
        ConfigError: If a loop of the user's own does not let it.
    """
    if hasattr(loop, "begin_at"):
        loop.begin_at(epoch, iteration)
        return
    for name, value in (("epoch", epoch), ("iter", iteration)):
        if getattr(loop, name) == value:
            continue
        try:  # in MMEngine's loops the names without an underscore are only read
            setattr(loop, f"_{name}" if hasattr(loop, f"_{name}") else name, value)
        except AttributeError as error:
            raise ConfigError(
                f"train_loop: {type(loop).__name__}.{name} has to become {value}, and cannot be "
                f"set. Let it be an attribute, or a property that returns self._{name}."
            ) from error


def listed(schedules: Any) -> list[Any]:
    """Return all schedules, of whichever wrapper."""
    return [one for group in named_schedulers(schedules).values() for one in group]


def as_listed(value: Any) -> Any:
    """Return a list of schedules where one, a tuple or ``None`` was assigned; else the value."""
    if value is None or isinstance(value, tuple):
        return list(value or ())
    return [value] if hasattr(value, "step") else value


def are_schedules(value: Any) -> bool:
    """Tell whether these are schedules already, or a config has still to become some."""
    groups = list(value.values()) if isinstance(value, Mapping) else [value]
    return all(
        isinstance(group, list) and all(hasattr(one, "step") for one in group) for group in groups
    )


def check_schedules(
    optim_wrapper: Any, schedules: Any, *, are_assigned: bool, are_stepped: bool = True
) -> None:
    """Check that hooks can step the schedules, and that assigned ones drive what is trained.

    Args:
        optim_wrapper: A wrapper, or several.
        schedules: Of these.
        are_assigned: Whether they were assigned.
        are_stepped: Whether a hook of ours steps them.

    Raises:
        ConfigError: If not.
    """
    wrappers, by_name = named_wrappers(optim_wrapper), named_schedulers(schedules)
    asked = _OF_STEPPED if are_stepped else _OF_SCHEDULE
    if not by_name.keys() <= wrappers.keys():
        raise ConfigError(
            f"param_schedulers: they are for {_names(by_name)}, and optim_wrapper is "
            f"{_names(wrappers)}. Of several wrappers they are a dict of lists by name, of a "
            "single one a list."
        )
    for name, group in by_name.items():
        for one in group:
            missing = [attribute for attribute in asked if not hasattr(one, attribute)]
            if missing:
                raise ConfigError(
                    f"param_schedulers: {type(one).__name__} has no {', no '.join(missing)}; give "
                    "its config, dict(type=...), which a schedule is built from."
                )
            if are_assigned and drives_another(wrappers[name], one):
                raise ConfigError(
                    f"param_schedulers: the schedules assigned{f' for {name}' if name else ''} are "
                    f"over another {type(one.optimizer).__name__} than the one that is trained "
                    "with. Assign their config, param_schedulers = [dict(type=...)]; or assign "
                    "optim_wrapper first, and build them then."
                )


def drives_another(wrapper: Any, schedule: Any) -> bool:
    """Tell whether a schedule changes settings of an optimizer, and none of this wrapper's."""
    groups = getattr(getattr(schedule, "optimizer", None), "param_groups", None)
    # By their groups: an optimizer around another one, as those that shard, shares them.
    return groups is not None and {*map(id, groups)}.isdisjoint(map(id, wrapper.param_groups))


def _names(parts: Mapping[str, Any]) -> str:
    return ", ".join(name or "a single one" for name in parts) or "none"
