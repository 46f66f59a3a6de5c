"""Schedules of learning rates, momenta and any other setting of the optimizer."""

from ._families import FAMILIES, Shape
from ._param_scheduler import ParamScheduler, build_param_schedulers, named_schedulers, own_class

__all__ = [
    "FAMILIES",
    "ParamScheduler",
    "Shape",
    "build_param_schedulers",
    "named_schedulers",
    "own_class",
]
