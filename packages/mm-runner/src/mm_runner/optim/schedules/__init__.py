"""Schedules of learning rates, momenta and any other setting of the optimizer."""

from ._build import (
    build_param_scheduler,
    build_param_schedulers,
    is_users_class,
    named_schedulers,
    schedule_class,
)
from ._families import FAMILIES
from ._param_scheduler import (
    INF,
    LRSchedulerMixin,
    MomentumSchedulerMixin,
    ParamScheduler,
    named_class,
)

__all__ = [
    "FAMILIES",
    "INF",
    "LRSchedulerMixin",
    "MomentumSchedulerMixin",
    "ParamScheduler",
    "build_param_scheduler",
    "build_param_schedulers",
    "is_users_class",
    "named_class",
    "named_schedulers",
    "schedule_class",
]
