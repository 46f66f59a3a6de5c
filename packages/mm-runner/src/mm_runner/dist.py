"""All of :mod:`mm_dist`, under MMEngine's name of the module."""

from mm_dist import *  # noqa: F403
from mm_dist import __all__ as __all__  # noqa: PLC0414
