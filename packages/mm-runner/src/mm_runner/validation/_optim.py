"""Optimizers, their wrappers and their schedules, tried on parameters of four numbers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from inspect import isclass
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

import mm_dist
from mm_amp import AmpOptimWrapper
from mm_runner.errors import ComponentNotFoundError, ConfigError
from mm_runner.optim import (
    DefaultOptimWrapperConstructor,
    MultiOptimWrapperConstructor,
    ParamScheduler,
    build_optim_wrapper,
)
from mm_runner.registry import (
    OPTIM_WRAPPER_CONSTRUCTORS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    check_cfg,
)

from ._components import check_component, need_mapping

__all__ = ["check_optim_wrapper", "check_schedules"]

# Longer than any run: the real length is known once there is data.
_ENDLESS = 10**9
_OF_CONSTRUCTORS = ("constructor", "paramwise_cfg")
# What another optimizer shares with the one that is tried in its place.
_COMMON = ("lr", "weight_decay")


def check_optim_wrapper(cfg: Any, where: str, device_type: str | None = None) -> None:
    """Check the config of an optimizer wrapper, or of several.

    Args:
        cfg: A wrapper, its config, or that of several with ``constructor``.
        where: Path of it.
        device_type: Where the parameters are going to be; by default what there is.

    Raises:
        ConfigError: If it does not fit, or the optimizer or the wrapper itself refuses it.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    if cfg is None or hasattr(cfg, "update_params"):
        return
    need_mapping(cfg, where, "an optim wrapper or a dict")
    if cfg and all(hasattr(value, "update_params") for value in cfg.values()):
        return
    constructor = cfg.get("constructor")
    if constructor is None:
        _check_one(cfg, where, device_type)
        return
    kind, _ = check_cfg(
        {"type": constructor},
        OPTIM_WRAPPER_CONSTRUCTORS,
        where=f"{where}.constructor",
        is_partial=True,
    )
    if isclass(kind) and issubclass(kind, MultiOptimWrapperConstructor):
        for name, part in cfg.items():
            if name not in _OF_CONSTRUCTORS:
                check_optim_wrapper(part, f"{where}.{name}", device_type)
    elif "optimizer" in cfg:  # else it has a form of its own
        plain = cfg
        if kind is not DefaultOptimWrapperConstructor:
            # It may look for parts of the model, which is not there yet.
            plain = {key: value for key, value in cfg.items() if key not in _OF_CONSTRUCTORS}
        _check_one(plain, where, device_type)
        if isclass(kind) and issubclass(kind, DefaultOptimWrapperConstructor):
            kind(cfg, cfg.get("paramwise_cfg"), where=where)


def _check_one(cfg: Mapping[str, Any], where: str, device_type: str | None) -> None:
    if "optimizer" not in cfg:
        raise ConfigError(
            f"{where}.optimizer: this key is missing; given: {', '.join(map(repr, cfg)) or 'none'}."
            " It is a dict such as dict(type='SGD', lr=0.01)."
        )
    optimizer = cfg["optimizer"]
    if isinstance(optimizer, Optimizer):
        return
    kind = check_component(optimizer, OPTIMIZERS, f"{where}.optimizer", given=("params",))
    plain = {key: value for key, value in cfg.items() if key not in _OF_CONSTRUCTORS}
    wrapper = check_component(plain, OPTIM_WRAPPERS, where, default="OptimWrapper")
    tried = dict(cfg)
    if not kind.__module__.startswith("torch.optim"):
        # Another's may ask for its device, or tell things once: not here, then.
        common = {key: optimizer[key] for key in _COMMON if key in optimizer}
        tried["optimizer"] = {"type": SGD, "lr": 0.1, **common}
    if wrapper is AmpOptimWrapper and cfg.get("device_type") is None:
        tried["device_type"] = device_type or mm_dist.available_device_type()
    # Two alike, since a constructor may look for repeated layers.
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(2)))
    _try(lambda: build_optim_wrapper(model, tried, where=where))


def check_schedules(cfg: Any, where: str, num_epochs: Any) -> None:
    """Check the schedules: a config, a list of configs, or a dict of these by name of a wrapper.

    Args:
        cfg: See above.
        where: Path of it.
        num_epochs: Epochs of the run; anything but a positive integer if they are not counted.

    Raises:
        ConfigError: If one does not fit.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    for one, place in _listed(cfg, where):
        if isinstance(one, ParamScheduler):
            continue
        need_mapping(one, place, "a dict with the key 'type'")
        for key in ("by_epoch", "convert_to_iter_based"):
            if not isinstance(one.get(key, True), bool):
                raise ConfigError(f"{place}.{key}: True or False is needed, got {one[key]!r}.")
        try:
            _try(functools.partial(_schedule, one, place, num_epochs))
        except ComponentNotFoundError as error:
            text = str(error)
            raise ComponentNotFoundError(
                text if text.startswith(place) else f"{place}.type: {text}"
            ) from error


def _schedule(cfg: Mapping[str, Any], where: str, num_epochs: Any) -> ParamScheduler:
    counts = isinstance(num_epochs, int) and num_epochs > 0
    return ParamScheduler(
        SGD([nn.Parameter()], lr=0.1, momentum=0.9),
        cfg,
        num_epochs=num_epochs if counts else _ENDLESS,
        num_iters=_ENDLESS,
        where=where,
    )


def _listed(cfg: Any, where: str) -> Iterator[tuple[Any, str]]:
    if isinstance(cfg, Mapping) and "type" not in cfg and _is_by_name(cfg):
        for name, own in cfg.items():
            yield from _listed(own, f"{where}.{name}")
    elif isinstance(cfg, (list, tuple)):
        for index, one in enumerate(cfg):
            yield one, f"{where}[{index}]" if len(cfg) > 1 else where
    elif cfg is not None:
        yield cfg, where


def _is_by_name(cfg: Mapping[str, Any]) -> bool:
    return any(isinstance(value, (Mapping, list, tuple)) for value in cfg.values())


def _try(build: Callable[[], object]) -> None:
    """Build what is small; what is wrong only without the real device or model is no error."""
    with warnings.catch_warnings(), suppress(RuntimeError, NotImplementedError):
        warnings.simplefilter("ignore")  # they come when it is built for the run
        build()
