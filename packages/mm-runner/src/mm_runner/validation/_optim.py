"""Check optimizers, their wrappers and schedules by building them for a tiny model."""

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
    ParamScheduler,
    build_optim_wrapper,
    build_param_scheduler,
)
from mm_runner.optim.schedules import is_users_class, schedule_class
from mm_runner.registry import (
    OPTIM_WRAPPER_CONSTRUCTORS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    Registry,
    check_cfg,
    need_mapping,
)

_OF_CONSTRUCTORS = ("constructor", "paramwise_cfg")
# Longer than any run: the real length is known once there is data.
_ENDLESS = 10**9


def check_component(
    cfg: Any,
    registry: Registry,
    where: str,
    *,
    default: str | None = None,
    given: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """Check the config of a component that gets ``given`` from the run, and return the component.

    ``default`` is the ``type`` of a config without one.
    """
    defaults = {"type": default, **dict.fromkeys(given, object())}  # fits every annotation
    return check_cfg(cfg, registry, defaults, where=where)[0]


def check_optim_wrapper(cfg: Any, where: str, device_type: str | None = None) -> None:
    """Check the config of an optimizer wrapper, or of several."""
    if cfg is None or hasattr(cfg, "update_params"):
        return
    need_mapping(cfg, where, "an optim wrapper or a dict")
    if cfg and all(hasattr(value, "update_params") for value in cfg.values()):
        return
    kind: Any = DefaultOptimWrapperConstructor
    if cfg.get("constructor") is not None:
        given, place = {"type": cfg["constructor"]}, f"{where}.constructor"
        kind, _ = check_cfg(given, OPTIM_WRAPPER_CONSTRUCTORS, where=place, is_partial=True)
        if isclass(kind) and issubclass(kind, MultiOptimWrapperConstructor):
            for name, part in cfg.items():
                if name not in _OF_CONSTRUCTORS:
                    check_optim_wrapper(part, f"{where}.{name}", device_type)
            return
        if "optimizer" not in cfg:  # the constructor defines its keys
            return
    if getattr(kind, "__init__", None) is DefaultOptimWrapperConstructor.__init__:
        kind(cfg, cfg.get("paramwise_cfg"), where=where)
    if not isinstance(cfg["optimizer"], Optimizer):
        # A constructor may look for parts of the model, which is not there yet.
        plain = {key: value for key, value in cfg.items() if key not in _OF_CONSTRUCTORS}
        _check_one(plain, where, device_type)


def _check_one(plain: dict[str, Any], where: str, device_type: str | None) -> None:
    """Check an optimizer and its wrapper, and build them for a tiny model."""
    place, model = f"{where}.optimizer", nn.Linear(2, 2, bias=False)
    optimizer = check_component(plain["optimizer"], OPTIMIZERS, place, given=("params",))
    if not optimizer.__module__.startswith("torch.optim"):  # it may look for its device, or log
        plain["optimizer"] = SGD(model.parameters(), lr=0.1)
    wrapper = check_component(plain, OPTIM_WRAPPERS, where, default="OptimWrapper")
    if wrapper is AmpOptimWrapper and plain.get("device_type") is None:
        plain["device_type"] = device_type or mm_dist.available_device_type()
    _try_to_build(build_optim_wrapper, model, plain, where=where)


def check_schedules(cfg: Any, where: str, num_epochs: Any) -> None:
    """Check the schedules: a config, a list of configs, or a dict of these by name of a wrapper."""
    if isinstance(cfg, (list, tuple)):
        for index, one in enumerate(cfg):
            _check_schedule(one, f"{where}[{index}]", num_epochs)
        return
    values = cfg.values() if isinstance(cfg, Mapping) and "type" not in cfg else ()
    if any(isinstance(one, (Mapping, list, tuple)) for one in values):
        for name, one in cfg.items():
            check_schedules(one, f"{where}.{name}", num_epochs)
    elif cfg is not None:
        _check_schedule(cfg, where, num_epochs)


def _check_schedule(cfg: Any, where: str, num_epochs: Any) -> None:
    if isinstance(cfg, ParamScheduler):
        return
    need_mapping(cfg, where, "a dict with the key 'type'")
    # An argument may be a list with a value for each parameter group.
    lengths = [len(value) for value in cfg.values() if isinstance(value, (list, tuple))]
    optimizer = SGD([{"params": [nn.Parameter()]} for _ in range(max([1, *lengths]))], lr=0.1)
    for group in optimizer.param_groups:
        group.setdefault(str(cfg.get("param_name")), 0.1)
    is_number = isinstance(num_epochs, int) and num_epochs > 0
    length = {"num_epochs": num_epochs if is_number else _ENDLESS, "num_iters": _ENDLESS}
    if not is_users_class(schedule_class(cfg, where)):  # it may need the optimizer of the run
        _try_to_build(build_param_scheduler, optimizer, cfg, **length, where=where)


def _try_to_build(build: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Build something that may lack its device here; raise for values that it cannot take."""
    with warnings.catch_warnings(), suppress(RuntimeError, NotImplementedError):
        warnings.simplefilter("ignore")  # they come when it is built for the run
        try:
            build(*args, **kwargs)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            if type(error).__module__ != "builtins":  # of one of our packages, and clear
                raise
            raise ConfigError(f"{kwargs['where']}: {type(error).__name__}: {error}.") from error
