"""Optimizer wrappers and parameter schedulers from their configs."""

from mm_amp import AmpOptimWrapper, OptimWrapper, OptimWrapperDict

from ._constructors import DefaultOptimWrapperConstructor
from ._optim_wrapper import (
    MultiOptimWrapperConstructor,
    build_optim_wrapper,
    holds_gradients,
    named_wrappers,
    scale_lr,
)
from .schedules import ParamScheduler, Shape, build_param_schedulers, named_schedulers

__all__ = [
    "AmpOptimWrapper",
    "DefaultOptimWrapperConstructor",
    "MultiOptimWrapperConstructor",
    "OptimWrapper",
    "OptimWrapperDict",
    "ParamScheduler",
    "Shape",
    "build_optim_wrapper",
    "build_param_schedulers",
    "holds_gradients",
    "named_schedulers",
    "named_wrappers",
    "scale_lr",
]
