"""A model of startup, all-reduces and checkpoints of large jobs: formulas, and nothing that runs.

Sources of the formulas stand beside them, those of the constants in ``_constants``.
"""

from scaling.model.constants import Constants, default_constants, describe_constants
from scaling.model.estimate import Estimate, estimate
from scaling.model.job import BACKENDS, Job
from scaling.model.limits import Limit, find_limits

__all__ = [
    "BACKENDS",
    "Constants",
    "Estimate",
    "Job",
    "Limit",
    "default_constants",
    "describe_constants",
    "estimate",
    "find_limits",
]
