"""Optimizer wrappers and parameter schedulers from their configs."""

from typing import Any

from mm_amp import AmpOptimWrapper, OptimWrapper, OptimWrapperDict

from ._constructors import DefaultOptimWrapperConstructor
from ._optim_wrapper import (
    MultiOptimWrapperConstructor,
    build_optim_wrapper,
    holds_gradients,
    named_wrappers,
    scale_lr,
)
from .schedules import (
    FAMILIES,
    INF,
    LRSchedulerMixin,
    MomentumSchedulerMixin,
    ParamScheduler,
    build_param_scheduler,
    build_param_schedulers,
    named_class,
    named_schedulers,
)

_ParamScheduler = ParamScheduler  # MMEngine's name

__all__ = [
    "INF",
    "AmpOptimWrapper",
    "DefaultOptimWrapperConstructor",
    "LRSchedulerMixin",
    "MomentumSchedulerMixin",
    "MultiOptimWrapperConstructor",
    "OptimWrapper",
    "OptimWrapperDict",
    "ParamScheduler",
    "_ParamScheduler",
    "build_optim_wrapper",
    "build_param_scheduler",
    "build_param_schedulers",
    "holds_gradients",
    "named_schedulers",
    "named_wrappers",
    "scale_lr",
]


def __getattr__(name: str) -> Any:
    """Return a schedule by MMEngine's name, such as ``CosineAnnealingLR``."""
    if name in FAMILIES:
        return named_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *FAMILIES]
