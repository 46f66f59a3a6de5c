"""Schedules of learning rates, momenta and any other setting of the optimizer."""

from ._build import build_param_schedulers, named_schedulers
from ._param_scheduler import ParamScheduler
from ._replay import replay
from ._shape import Shape

__all__ = ["ParamScheduler", "Shape", "build_param_schedulers", "named_schedulers", "replay"]
