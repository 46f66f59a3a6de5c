"""Build the schedules of a run from their configs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

import mm_dist
from mm_amp import OptimWrapperDict
from mm_runner.errors import ComponentNotFoundError, ConfigError, did_you_mean
from mm_runner.registry import (
    PARAM_SCHEDULERS,
    check_arguments,
    derives_from_library,
    need_mapping,
)

from ._families import FAMILIES, named_class
from ._param_scheduler import FamilySchedule, ParamScheduler
from ._torch_schedule import TorchSchedule

if TYPE_CHECKING:
    from torch.optim import Optimizer

_OF_WINDOW = ("begin", "end", "by_epoch", "convert_to_iter_based", "verbose")


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
            ``OptimWrapperDict`` that is for each of its wrappers; or a dict of these by name.
        num_epochs: See :func:`build_param_scheduler`.
        num_iters: See there.
        epoch_length: See there.

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


def build_param_scheduler(
    optimizer: Optimizer,
    cfg: Mapping[str, Any],
    *,
    num_epochs: int,
    num_iters: int,
    epoch_length: int | None = None,
    where: str = "param_scheduler",
) -> ParamScheduler:
    """Build one scheduler.

    Args:
        optimizer: Whose parameter groups are scheduled.
        cfg: ``dict(type=..., begin=0, end=..., by_epoch=True, **arguments)``. ``type`` is
            MMEngine's name of a schedule of the learning rate (``"CosineAnnealingLR"``), the
            momentum (``"CosineAnnealingMomentum"``) or, with ``param_name``, any number of a
            parameter group (``"CosineAnnealingParamScheduler"``), a class derived from
            :class:`ParamScheduler`, or any other class of ``torch.optim.lr_scheduler``.
            ``convert_to_iter_based=True`` turns a schedule written in epochs into one by iteration.
        num_epochs: Epochs of the run, the default ``end`` of a schedule by epoch.
        num_iters: Iterations of the run, the default ``end`` of a schedule by iteration.
        epoch_length: Iterations of an epoch. Defaults to ``num_iters // num_epochs``.
        where: Path of ``cfg`` in the configuration, for messages.

    Raises:
        ConfigError: If the window is empty or an argument does not fit.
        ComponentNotFoundError: If ``type`` names nothing.
    """
    kind, arguments = schedule_class(cfg, where), dict(cfg)
    del arguments["type"]
    epoch_length = epoch_length or num_iters // max(num_epochs, 1)
    given = {name: arguments.pop(name) for name in _OF_WINDOW if name in cfg}
    check_arguments(_window, given, where, is_partial=True)
    window, factor = _window(num_epochs, num_iters, epoch_length, where, **given)
    build = kind
    if is_users_class(kind):
        given.pop("convert_to_iter_based", None)
        arguments |= {**given, "end": window["end"] // factor}  # it may take no other part of it
        if factor != 1:
            build, arguments["epoch_length"] = kind.build_iter_from_epoch, factor
        check_arguments(build, {**arguments, "optimizer": optimizer}, where, name=kind.__name__)
    elif isinstance(kind, type) and issubclass(kind, FamilySchedule):
        of_family = {name: one for name, one in arguments.items() if name != "param_name"}
        check_arguments(kind.family, of_family, where, name=kind.__name__)
        arguments = {**kind.in_iters(arguments, factor), **window}
    else:
        if isinstance(kind, type) and issubclass(kind, ReduceLROnPlateau):
            raise ConfigError(f"{where}.type: it follows a metric; write 'ReduceOnPlateauLR'.")
        if factor != 1 or derives_from_library(kind):  # it knows of no window before its own
            inner = {**window, "begin": 0, "end": window["end"] - window["begin"]}
            kind, arguments = _with_window(kind, arguments, inner, factor, where)
        cfg = {"type": kind, **arguments}
        build, arguments = TorchSchedule, {"cfg": cfg, "where": where, **window}
    try:
        schedule: ParamScheduler = build(optimizer=optimizer, **arguments)
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from error
    schedule.of_run(where, epoch_length, has_own_end=given.get("end") is not None)
    return schedule


def _window(
    num_epochs: int,
    num_iters: int,
    epoch_length: int,
    where: str,
    *,
    begin: int = 0,
    end: int | None = None,
    by_epoch: bool = True,
    convert_to_iter_based: bool = False,
    verbose: Any = False,  # noqa: ARG001 - MMEngine's
) -> tuple[dict[str, Any], int]:
    """Return the window, and what arguments that count epochs are to be multiplied by."""
    converts = by_epoch and convert_to_iter_based
    factor = epoch_length if converts else 1
    by_epoch = by_epoch and not converts
    of_run = num_epochs if by_epoch else num_iters
    window = {"begin": begin * factor, "end": of_run if end is None else end * factor}
    if not 0 <= window["begin"] < window["end"]:
        unit = "epoch(s)" if by_epoch else "iteration(s)"
        raise ConfigError(
            f"{where}: begin={begin} and end={end} were given, and the run ends after "
            f"{of_run:,} {unit}; 0 <= begin < end is needed."
        )
    return {**window, "by_epoch": by_epoch}, factor


def _with_window(
    kind: Any, arguments: Mapping[str, Any], window: Mapping[str, Any], factor: int, where: str
) -> tuple[Any, dict[str, Any]]:
    """Return what builds a class that has a window, or converts itself, and the arguments."""
    if factor == 1:
        return kind, {**arguments, **window}
    if not hasattr(kind, "build_iter_from_epoch"):
        name = getattr(kind, "__name__", kind)
        raise ConfigError(
            f"{where}.convert_to_iter_based: {name!r} cannot be converted; write its arguments in "
            "iterations, with by_epoch=False."
        )
    in_epochs = {name: window[name] // factor for name in ("begin", "end")}
    return kind.build_iter_from_epoch, {**arguments, **in_epochs, "epoch_length": factor}


def schedule_class(cfg: Mapping[str, Any], where: str) -> Any:
    """Return the class that ``type`` names.

    Raises:
        ConfigError: If ``cfg`` has no ``type``.
        ComponentNotFoundError: If it names nothing.
    """
    kind = cfg.get("type")
    if kind is None:
        raise ConfigError(
            f"{where}: the key 'type' is missing; given: "
            f"{', '.join(map(repr, cfg)) or 'nothing'}. It names a schedule: "
            f"{', '.join(FAMILIES)}, or a class of torch.optim.lr_scheduler."
        )
    if isinstance(kind, str):
        bare = kind.removeprefix("mmengine.")
        if bare in FAMILIES and bare not in PARAM_SCHEDULERS.module_dict:  # a registered name wins
            return named_class(bare)
        try:
            kind = PARAM_SCHEDULERS.get(kind, others=list(FAMILIES))
        except ComponentNotFoundError as error:
            raise ComponentNotFoundError(f"{where}.type: {error}") from error
    module, name = getattr(kind, "__module__", None) or "", getattr(kind, "__name__", None)
    return named_class(name) if name in FAMILIES and module.startswith("mmengine.optim.") else kind


def is_users_class(kind: Any) -> bool:
    """Return whether it derives from :class:`ParamScheduler`, and is none of MMEngine's names."""
    derives = isinstance(kind, type) and issubclass(kind, ParamScheduler)
    return derives and "family" not in vars(kind)


def _build_list(
    optimizer: Optimizer, cfg: Any, where: str, run: dict[str, Any]
) -> list[ParamScheduler]:
    listed = list(cfg) if isinstance(cfg, Sequence) and not isinstance(cfg, str) else [cfg]
    schedulers = []
    for index, one in enumerate(listed if cfg is not None else []):
        place = f"{where}[{index}]" if len(listed) > 1 else where
        if isinstance(one, ParamScheduler):
            schedulers.append(one)
            continue
        need_mapping(one, place, "a dict with the key 'type'")
        schedule = build_param_scheduler(optimizer, one, where=place, **run)
        schedulers.append(schedule)
        total = one.get("total_steps")
        of_run = run["num_epochs"] if schedule.by_epoch else run["num_iters"]
        needed = min(schedule.end, of_run) - schedule.begin
        is_short = isinstance(total, int) and total < needed
        if is_short and not one.get("convert_to_iter_based") and mm_dist.is_main_process():
            unit = "epochs" if schedule.by_epoch else "steps of one batch"
            warnings.warn(
                f"{place}: the cycle ends after total_steps={total}, and it acts in {needed} "
                f"{unit}: the value stays at its end from there. Give total_steps={needed}.",
                stacklevel=2,
            )
    return schedulers


def named_schedulers(
    schedulers: list[ParamScheduler] | dict[str, list[ParamScheduler]],
) -> dict[str, list[ParamScheduler]]:
    """Return schedulers by the name of their wrapper; those of the only one under ``""``."""
    return schedulers if isinstance(schedulers, dict) else {"": schedulers}
