"""The Runner."""

from mm_amp import autocast

from ._runner import Runner

__all__ = ["Runner", "autocast"]
