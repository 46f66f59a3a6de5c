"""The length of a planned run, and its learning rates at key steps."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from mm_runner._error_text import with_place
from mm_runner.data import DataSettings, build_dataloader, num_batches
from mm_runner.errors import ConfigError
from mm_runner.optim import (
    ParamScheduler,
    build_param_schedulers,
    named_schedulers,
    named_wrappers,
)

__all__ = ["Length", "build_schedules", "length_of_run", "rates_at_key_steps"]

# Schedules are gone through step by step: a few seconds at most.
_MOST_STEPS = 200_000
_PARTS = 4


class Length(NamedTuple):
    """Of a run.

    ``epoch_steps`` is how many steps go through the data once, ``None`` where these have no length.
    Unless the run counts epochs (``by_epoch``), all of it is one.
    """

    num_epochs: int
    epoch_steps: int | None
    num_steps: int
    per_process: int | None
    by_epoch: bool


def length_of_run(cfg: Any, world_size: int) -> Length:
    """Return the length of the run; the dataset is built, nothing is read from it.

    Args:
        cfg: The full configuration.
        world_size: Processes that share the data.

    Raises:
        ConfigError: If the dataloader's config does not fit, or epochs are counted and the data
            have no length.
    """
    settings = DataSettings(0, torch.Generator(), 0, world_size)
    loader = build_dataloader(
        cfg["train_dataloader"], settings, shuffle=True, where="train_dataloader"
    )
    batch_size = getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size
    train_cfg = cfg["train_cfg"]
    if train_cfg.get("max_iters") is not None and train_cfg.get("max_epochs") is None:
        steps = _steps(loader, world_size) if _has_length(loader) else None
        return Length(1, steps, int(train_cfg["max_iters"]), batch_size, by_epoch=False)
    num_batches(loader, "train_dataloader")
    steps = _steps(loader, world_size)
    num_epochs = int(train_cfg["max_epochs"])
    return Length(num_epochs, steps, num_epochs * steps, batch_size, by_epoch=True)


def _steps(loader: DataLoader[Any], world_size: int) -> int:
    """Return the steps of an epoch if ``world_size`` processes share the data."""
    if loader.batch_size is None or world_size == 1:
        return math.ceil(len(loader) / world_size)
    share = math.ceil(len(loader.sampler) / world_size)  # type: ignore[arg-type]
    return share // loader.batch_size if loader.drop_last else math.ceil(share / loader.batch_size)


def _has_length(loader: DataLoader[Any]) -> bool:
    try:
        return len(loader) > 0
    except TypeError:
        return False


def build_schedules(optim_wrapper: Any, cfg: Any, length: Length) -> list[ParamScheduler]:
    """Build the schedules of all wrappers.

    Args:
        optim_wrapper: Its parameter groups are changed.
        cfg: ``param_scheduler`` of the configuration.
        length: Of the run.

    Raises:
        ConfigError: If one does not fit.
    """
    schedulers = build_param_schedulers(
        optim_wrapper,
        cfg,
        num_epochs=length.num_epochs,
        num_iters=length.num_steps,
        epoch_length=length.epoch_steps,
    )
    return [one for group in named_schedulers(schedulers).values() for one in group]


def rates_at_key_steps(
    optim_wrapper: Any, listed: list[ParamScheduler], length: Length, notes: list[str]
) -> list[dict[str, Any]]:
    """Step through the schedules, and return the rates at the beginning, turns and end.

    Args:
        optim_wrapper: Its parameter groups are changed.
        listed: The schedules, as they were built.
        length: Of the run.
        notes: Says what cannot be shown.

    Returns:
        ``step``, ``epoch`` and ``lr``, the rate of each wrapper's first group by its name.

    Raises:
        ConfigError: If a schedule fails before the run is over.
    """
    if any(one.need_val_args for one in listed):
        notes.append("A schedule follows a metric, and is not shown.")
    followed = [one for one in listed if not one.need_val_args]
    last = length.num_steps - 1
    if last >= _MOST_STEPS and any(not one.by_epoch for one in followed):
        last = _MOST_STEPS
        notes.append(f"The schedule is shown up to step {last}.")
    if not length.by_epoch and any(one.by_epoch for one in followed):
        notes.append("A schedule counts epochs, and the run counts iterations: it will not change.")
    found, position = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer does not step between
        for step in sorted(_key_steps(followed, length, last)):
            _advance(followed, position, step, length)
            found.append(_rates(optim_wrapper, step, length))
            position = step
    return found


def _advance(schedulers: list[Any], begin: int, end: int, length: Length) -> None:
    """Step the schedules from step ``begin`` to ``end``."""
    # A run by iterations is one epoch, at whose end nothing is scheduled any more.
    epoch_steps = (length.by_epoch and length.epoch_steps) or end + 1
    if all(one.by_epoch for one in schedulers):  # from epoch to epoch, of which there are fewer
        for _ in range(end // epoch_steps - begin // epoch_steps):
            _step(schedulers)
        return
    for step in range(begin, end):
        is_end = (step + 1) % epoch_steps == 0
        _step([one for one in schedulers if is_end or not one.by_epoch])


def _step(schedulers: list[Any]) -> None:
    for one in schedulers:
        try:
            one.step()
        except Exception as error:
            raise ConfigError(
                f"{one.where}: it fails before the run is over: {with_place(error)}."
            ) from error


def _key_steps(schedulers: list[Any], length: Length, last: int) -> set[int]:
    steps = {0, last, *(last * part // _PARTS for part in range(_PARTS))} if schedulers else {0}
    for one in schedulers:
        unit = (length.epoch_steps or 0) if one.by_epoch else 1
        steps |= {one.begin * unit, one.end * unit}
    return {step for step in steps if step <= last}


def _rates(optim_wrapper: Any, step: int, length: Length) -> dict[str, Any]:
    rates = {
        name: float(wrapper.optimizer.param_groups[0]["lr"])
        for name, wrapper in named_wrappers(optim_wrapper).items()
    }
    epoch = step // length.epoch_steps if length.epoch_steps else 0
    return {"step": step, "epoch": epoch, "lr": rates}
