"""Schedules of learning rates, momenta and any other setting of the optimizer."""

from ._families import FAMILIES, Shape
from ._named import INF, LRSchedulerMixin, MomentumSchedulerMixin, Schedule, named_class
from ._param_scheduler import (
    ParamScheduler,
    build_param_schedulers,
    build_scheduler,
    named_schedulers,
)

__all__ = [
    "FAMILIES",
    "INF",
    "LRSchedulerMixin",
    "MomentumSchedulerMixin",
    "ParamScheduler",
    "Schedule",
    "Shape",
    "build_param_schedulers",
    "build_scheduler",
    "named_class",
    "named_schedulers",
]
