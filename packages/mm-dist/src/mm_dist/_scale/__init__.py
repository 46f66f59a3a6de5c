"""A model of startup, all-reduces and checkpoints of large jobs: formulas, and nothing that runs.

Sources of the formulas stand beside them, those of the constants in ``_constants``.
"""

from mm_dist._scale._constants import Constants, default_constants, describe_constants
from mm_dist._scale._estimate import Estimate, estimate
from mm_dist._scale._job import BACKENDS, Job
from mm_dist._scale._limits import Limit, find_limits

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
