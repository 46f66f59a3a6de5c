"""Optimizer wrappers and parameter schedulers from their configs."""

from mm_amp import AmpOptimWrapper, OptimWrapper

from ._optim_wrapper import build_optim_wrapper, scale_lr
from ._param_scheduler import ParamScheduler, build_param_schedulers

__all__ = [
    "AmpOptimWrapper",
    "OptimWrapper",
    "ParamScheduler",
    "build_optim_wrapper",
    "build_param_schedulers",
    "scale_lr",
]
