"""Optimizer wrappers and parameter schedulers from their configs."""

from mm_amp import AmpOptimWrapper, OptimWrapper, OptimWrapperDict

from ._multi_optim_wrapper import MultiOptimWrapperConstructor
from ._optim_wrapper import build_optim_wrapper, named_wrappers, scale_lr
from ._param_scheduler import ParamScheduler, build_param_schedulers, named_schedulers

__all__ = [
    "AmpOptimWrapper",
    "MultiOptimWrapperConstructor",
    "OptimWrapper",
    "OptimWrapperDict",
    "ParamScheduler",
    "build_optim_wrapper",
    "build_param_schedulers",
    "named_schedulers",
    "named_wrappers",
    "scale_lr",
]
