"""Check optimizers, their wrappers and schedules by building them for a tiny model."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
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

__all__ = ["Optimizers", "check_optim_wrapper", "check_schedules"]

# By the name of its wrapper, "" of the only one: one of torch's like it, ``None`` if not known.
Optimizers = dict[str, Optimizer | None]

_OF_CONSTRUCTORS = ("constructor", "paramwise_cfg")
# Longer than any run: the real length is known once there is data.
_ENDLESS = 10**9
# Infinity may be meant elsewhere, such as no limit of a norm.
_FINITE = (
    *("lr", "momentum", "weight_decay", "dampening", "eps"),
    *("gamma", "factor", "eta_min", "eta_min_ratio", "eta_max", "max_lr", "base_lr", "power"),
)


def check_optim_wrapper(cfg: Any, where: str, device_type: str | None = None) -> Optimizers:
    """Check the config of an optimizer wrapper, or of several.

    Args:
        cfg: A wrapper, its config, or that of several with ``constructor``.
        where: Path of it.
        device_type: Of the parameters. Defaults to the machine's.

    Returns:
        Optimizers to try schedules on.

    Raises:
        ConfigError: If it does not fit, or the optimizer or the wrapper itself refuses it.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    if cfg is None or hasattr(cfg, "update_params"):
        return {"": _torchs(getattr(cfg, "optimizer", None))}
    need_mapping(cfg, where, "an optim wrapper or a dict")
    if cfg and all(hasattr(value, "update_params") for value in cfg.values()):
        return {name: _torchs(getattr(one, "optimizer", None)) for name, one in cfg.items()}
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
    if "optimizer" not in cfg:  # the constructor reads keys of its own
        return {"": None}
    if isclass(kind) and issubclass(kind, DefaultOptimWrapperConstructor):
        kind(cfg, cfg.get("paramwise_cfg"), where=where)
    # A constructor may look for parts of the model, which is not there yet.
    plain = {key: value for key, value in cfg.items() if key not in _OF_CONSTRUCTORS}
    return {"": _check_one(plain, where, device_type)}


def check_schedules(cfg: Any, where: str, num_epochs: Any, optimizers: Optimizers) -> None:
    """Check the schedules: a config, a list of configs, or a dict of these by name of a wrapper.

    Args:
        cfg: See above.
        where: Path of it.
        num_epochs: Epochs of the run; anything but a positive integer if they are not counted.
        optimizers: As :func:`check_optim_wrapper` returned them.

    Raises:
        ConfigError: If one does not fit.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    counts_epochs = isinstance(num_epochs, int) and num_epochs > 0
    for one, place, name in _listed(cfg, where, ""):
        if isinstance(one, ParamScheduler):
            continue
        need_mapping(one, place, "a dict with the key 'type'")
        _check_numbers(one, place)
        # Of several optimizers that share a schedule, the first stands for all.
        template = optimizers.get(name, next(iter(optimizers.values()), None))
        _try_to_build(
            ParamScheduler,
            _optimizer_to_try(one, template),
            one,
            num_epochs=num_epochs if counts_epochs else _ENDLESS,
            num_iters=_ENDLESS,
            where=place,
        )


def _torchs(optimizer: Any) -> Optimizer | None:
    """Return ``optimizer`` if it is one of torch's, whose copies are known to be harmless."""
    is_torchs = type(optimizer).__module__.startswith("torch.optim")
    return optimizer if isinstance(optimizer, Optimizer) and is_torchs else None


def _check_one(cfg: Mapping[str, Any], where: str, device_type: str | None) -> Optimizer | None:
    DefaultOptimWrapperConstructor(cfg, cfg.get("paramwise_cfg"), where=where)
    optimizer = cfg["optimizer"]
    if isinstance(optimizer, Optimizer):
        return _torchs(optimizer)
    kind = check_component(optimizer, OPTIMIZERS, f"{where}.optimizer", given=("params",))
    _check_numbers(optimizer, f"{where}.optimizer")
    plain = {key: value for key, value in cfg.items() if key not in _OF_CONSTRUCTORS}
    wrapper = check_component(plain, OPTIM_WRAPPERS, where, default="OptimWrapper")
    if wrapper is AmpOptimWrapper and cfg.get("device_type") is None:
        plain["device_type"] = device_type or mm_dist.available_device_type()
    model = nn.Linear(2, 2, bias=False)
    is_torchs = kind.__module__.startswith("torch.optim")
    if not is_torchs:  # it may ask for its device, or log something
        plain["optimizer"] = SGD(model.parameters(), lr=0.1)
    built = _try_to_build(build_optim_wrapper, model, plain, where=where)
    return _torchs(getattr(built, "optimizer", None)) if is_torchs else None


def _check_numbers(cfg: Mapping[str, Any], where: str) -> None:
    """Refuse what torch takes and no training survives."""
    for key, value in cfg.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            is_float = isinstance(one, float)
            if is_float and (math.isnan(one) or (math.isinf(one) and key in _FINITE)):
                raise ConfigError(f"{where}.{key}: a finite number is needed, got {value!r}.")
    momentum = cfg.get("momentum")
    if isinstance(momentum, (int, float)) and momentum >= 1:
        raise ConfigError(
            f"{where}.momentum: a number below 1 is needed, got {momentum!r}; from 1 on, old "
            "gradients never fade."
        )


def _try_to_build(build: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Build what is small; errors that only the real device or model could avoid are none."""
    with warnings.catch_warnings(), suppress(RuntimeError, NotImplementedError):
        warnings.simplefilter("ignore")  # they come when it is built for the run
        return build(*args, **kwargs)
    return None


def _optimizer_to_try(cfg: Mapping[str, Any], template: Optimizer | None) -> Optimizer:
    """Return an optimizer like ``template`` with one group for each of the values in ``cfg``."""
    if template is None:  # the settings of another's are not known
        template = SGD([nn.Parameter()], lr=0.1, momentum=0.9)
        if isinstance(cfg.get("param_name"), str):
            template.param_groups[0].setdefault(cfg["param_name"], 0.1)
    lengths = [len(value) for value in cfg.values() if isinstance(value, (list, tuple))]
    settings = {key: value for key, value in template.param_groups[0].items() if key != "params"}
    tried = copy.copy(template)
    tried.param_groups = [  # deeply: a learning rate that is a tensor is changed in place
        {**copy.deepcopy(settings), "params": [nn.Parameter()]} for _ in range(max([1, *lengths]))
    ]
    return tried


def _listed(cfg: Any, where: str, name: str) -> Iterator[tuple[Any, str, str]]:
    """Yield each schedule with its path and the name of its wrapper."""
    is_nested = isinstance(cfg, Mapping) and any(
        isinstance(value, (Mapping, list, tuple)) for value in cfg.values()
    )
    if is_nested and "type" not in cfg:
        for key, own in cfg.items():
            yield from _listed(own, f"{where}.{key}", str(key))
    elif isinstance(cfg, (list, tuple)):
        for index, one in enumerate(cfg):
            yield one, f"{where}[{index}]", name
    elif cfg is not None:
        yield cfg, where, name
