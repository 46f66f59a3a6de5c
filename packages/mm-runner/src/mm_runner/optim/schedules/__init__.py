"""Schedules of learning rates, momenta and any other setting of the optimizer."""

from ._build import build_param_scheduler as build_param_scheduler
from ._build import build_param_schedulers as build_param_schedulers
from ._build import is_users_class as is_users_class
from ._build import named_schedulers as named_schedulers
from ._build import schedule_class as schedule_class
from ._families import FAMILIES as FAMILIES
from ._families import named_class as named_class
from ._param_scheduler import INF as INF
from ._param_scheduler import LRSchedulerMixin as LRSchedulerMixin
from ._param_scheduler import MomentumSchedulerMixin as MomentumSchedulerMixin
from ._param_scheduler import ParamScheduler as ParamScheduler
