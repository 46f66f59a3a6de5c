"""Build the schedules of a run from its configuration."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mm_dist
from mm_amp import OptimWrapperDict
from mm_runner.errors import ConfigError, did_you_mean

from ._param_scheduler import ParamScheduler

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["build_param_schedulers", "named_schedulers"]


def build_param_schedulers(
    optim_wrapper: Any,
    cfg: Any,
    *,
    num_epochs: int,
    num_iters: int,
    epoch_length: int | None = None,
) -> list[ParamScheduler] | dict[str, list[ParamScheduler]]:
    """Build every scheduler of ``cfg``.

    Args:
        optim_wrapper: An optimizer wrapper, or an ``OptimWrapperDict``.
        cfg: ``None``, one config (or a ready :class:`ParamScheduler`), or a list of these. For an
            ``OptimWrapperDict`` that is for each of its wrappers; or a dict of these by name, where
            others have no schedule.
        num_epochs: Epochs of the run.
        num_iters: Iterations of the run.
        epoch_length: Iterations of an epoch. Defaults to ``num_iters // num_epochs``.

    Returns:
        The schedulers; for an ``OptimWrapperDict``, by the name of the wrapper.

    Raises:
        ConfigError: If ``cfg`` is something else or does not fit.
    """
    run = {"num_epochs": num_epochs, "num_iters": num_iters, "epoch_length": epoch_length}
    if not isinstance(optim_wrapper, OptimWrapperDict):
        return _build_list(optim_wrapper.optimizer, cfg, "param_scheduler", run)
    if not isinstance(cfg, Mapping) or "type" in cfg:
        cfg = dict.fromkeys(optim_wrapper, cfg)
    for name in cfg:
        if name not in optim_wrapper:
            raise ConfigError(
                f"param_scheduler.{name}: there is no optim wrapper of this name; there is "
                f"{', '.join(optim_wrapper)}.{did_you_mean(str(name), optim_wrapper)}"
            )
    return {
        name: _build_list(wrapper.optimizer, cfg.get(name), f"param_scheduler.{name}", run)
        for name, wrapper in optim_wrapper.items()
    }


def named_schedulers(
    schedulers: list[ParamScheduler] | dict[str, list[ParamScheduler]],
) -> dict[str, list[ParamScheduler]]:
    """Return schedulers by the name of their wrapper; those of the only one under ``""``."""
    return schedulers if isinstance(schedulers, dict) else {"": schedulers}


def _build_list(
    optimizer: Optimizer, cfg: Any, where: str, run: dict[str, Any]
) -> list[ParamScheduler]:
    if cfg is None:
        return []
    listed = list(cfg) if isinstance(cfg, Sequence) and not isinstance(cfg, str) else [cfg]
    schedulers = []
    for index, one in enumerate(listed):
        place = f"{where}[{index}]" if len(listed) > 1 else where
        if isinstance(one, ParamScheduler):
            schedulers.append(one)
            continue
        if not isinstance(one, Mapping):
            raise ConfigError(f"{place}: a dict with the key 'type' is needed, got {one!r}.")
        schedulers.append(ParamScheduler(optimizer, one, where=place, **run))
        if not one.get("convert_to_iter_based"):
            _warn_of_short_cycle(schedulers[-1], one.get("total_steps"), run)
    return schedulers


def _warn_of_short_cycle(schedule: ParamScheduler, total: Any, run: dict[str, Any]) -> None:
    length = run["num_epochs"] if schedule.by_epoch else run["num_iters"]
    needed = min(schedule.end, length) - schedule.begin
    if isinstance(total, int) and total < needed and mm_dist.is_main_process():
        unit = "epochs" if schedule.by_epoch else "steps of one batch"
        warnings.warn(
            f"{schedule.where}: the cycle ends after total_steps={total}, and it acts in {needed} "
            f"{unit}: the value stays at its end from there. Give total_steps={needed}.",
            stacklevel=2,
        )
