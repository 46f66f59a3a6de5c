"""The ``NpuFused*`` optimizers, one file each; ``_named`` holds what they share."""

from ._adamw import NpuFusedAdamW

__all__ = ["NpuFusedAdamW"]
