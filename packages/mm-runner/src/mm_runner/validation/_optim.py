"""Optimizers and their wrappers, tried on parameters of four numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import isclass
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

import mm_dist
from mm_amp import AmpOptimWrapper
from mm_runner.errors import ConfigError
from mm_runner.optim import (
    DefaultOptimWrapperConstructor,
    MultiOptimWrapperConstructor,
    build_optim_wrapper,
)
from mm_runner.registry import (
    OPTIM_WRAPPER_CONSTRUCTORS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    check_cfg,
)

from ._components import check_component, check_finite, need_mapping

__all__ = ["Optimizers", "check_optim_wrapper", "try_to_build"]

# By the name of its wrapper, "" of the only one: one that is alike, ``None`` if there is none yet.
Optimizers = dict[str, Optimizer | None]

_OF_CONSTRUCTORS = ("constructor", "paramwise_cfg")
# What another optimizer shares with the one that is tried in its place.
_COMMON = ("lr", "weight_decay")


def check_optim_wrapper(cfg: Any, where: str, device_type: str | None = None) -> Optimizers:
    """Check the config of an optimizer wrapper, or of several.

    Args:
        cfg: A wrapper, its config, or that of several with ``constructor``.
        where: Path of it.
        device_type: Where the parameters are going to be; by default what there is.

    Returns:
        What schedules can be tried on.

    Raises:
        ConfigError: If it does not fit, or the optimizer or the wrapper itself refuses it.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    if cfg is None or hasattr(cfg, "update_params"):
        return {"": _optimizer_of(cfg)}
    need_mapping(cfg, where, "an optim wrapper or a dict")
    if cfg and all(hasattr(value, "update_params") for value in cfg.values()):
        return {name: _optimizer_of(value) for name, value in cfg.items()}
    constructor = cfg.get("constructor")
    if constructor is None:
        return {"": _check_one(cfg, where, device_type)}
    kind, _ = check_cfg(
        {"type": constructor},
        OPTIM_WRAPPER_CONSTRUCTORS,
        where=f"{where}.constructor",
        is_partial=True,
    )
    if isclass(kind) and issubclass(kind, MultiOptimWrapperConstructor):
        return {
            name: check_optim_wrapper(part, f"{where}.{name}", device_type).get("")
            for name, part in cfg.items()
            if name not in _OF_CONSTRUCTORS
        }
    found = None
    if "optimizer" in cfg:  # else it has a form of its own
        plain = cfg
        if kind is not DefaultOptimWrapperConstructor:
            # It may look for parts of the model, which is not there yet.
            plain = {key: value for key, value in cfg.items() if key not in _OF_CONSTRUCTORS}
        found = _check_one(plain, where, device_type)
        if isclass(kind) and issubclass(kind, DefaultOptimWrapperConstructor):
            kind(cfg, cfg.get("paramwise_cfg"), where=where)
    return {"": found}


def _optimizer_of(wrapper: Any) -> Optimizer | None:
    return _if_torchs(getattr(wrapper, "optimizer", None))


def _if_torchs(optimizer: Any) -> Optimizer | None:
    """Return ``optimizer`` if it is one of torch's, of which it is known what a copy does."""
    is_torchs = type(optimizer).__module__.startswith("torch.optim")
    return optimizer if isinstance(optimizer, Optimizer) and is_torchs else None


def _check_one(cfg: Mapping[str, Any], where: str, device_type: str | None) -> Optimizer | None:
    if "optimizer" not in cfg:
        raise ConfigError(
            f"{where}.optimizer: this key is missing; given: {', '.join(map(repr, cfg)) or 'none'}."
            " It is a dict such as dict(type='SGD', lr=0.01)."
        )
    optimizer = cfg["optimizer"]
    if isinstance(optimizer, Optimizer):
        return _if_torchs(optimizer)
    kind = check_component(optimizer, OPTIMIZERS, f"{where}.optimizer", given=("params",))
    check_finite(optimizer, f"{where}.optimizer")
    momentum = optimizer.get("momentum")
    if isinstance(momentum, (int, float)) and momentum >= 1:
        raise ConfigError(
            f"{where}.optimizer.momentum: a number below 1 is needed, got {momentum!r}; from 1 on, "
            "old gradients never fade."
        )
    plain = {key: value for key, value in cfg.items() if key not in _OF_CONSTRUCTORS}
    wrapper = check_component(plain, OPTIM_WRAPPERS, where, default="OptimWrapper")
    tried = dict(cfg)
    is_torchs = kind.__module__.startswith("torch.optim")
    if not is_torchs:
        # Another's may ask for its device, or tell things once: not here, then.
        common = {key: optimizer[key] for key in _COMMON if key in optimizer}
        tried["optimizer"] = {"type": _StandIn, "lr": 0.1, "weight_decay": 0.0, **common}
    if wrapper is AmpOptimWrapper and cfg.get("device_type") is None:
        tried["device_type"] = device_type or mm_dist.available_device_type()
    # Two alike, since a constructor may look for repeated layers.
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(2)))
    built = try_to_build(lambda: build_optim_wrapper(model, tried, where=where))
    return _optimizer_of(built) if is_torchs else None


class _StandIn(SGD):
    """Stands for an optimizer that is not torch's, whose settings are its own."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, lr=options["lr"])


def try_to_build(build: Callable[[], Any]) -> Any:
    """Build what is small; what is wrong only without the real device or model is no error."""
    with warnings.catch_warnings(), suppress(RuntimeError, NotImplementedError):
        warnings.simplefilter("ignore")  # they come when it is built for the run
        return build()
    return None
