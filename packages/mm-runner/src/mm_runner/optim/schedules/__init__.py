"""Schedules of learning rates, momenta and any other setting of the optimizer."""

from ._families import Shape
from ._param_scheduler import ParamScheduler, build_param_schedulers, named_schedulers

__all__ = ["ParamScheduler", "Shape", "build_param_schedulers", "named_schedulers"]
