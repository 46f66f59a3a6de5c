"""Nine optimizers that update all parameters of a dtype as one tensor."""

from .adaptive import NpuFusedAdadelta, NpuFusedRMSprop, NpuFusedRMSpropTF, NpuFusedSGD
from .moments import NpuFusedAdam, NpuFusedAdamP, NpuFusedAdamW, NpuFusedBertAdam, NpuFusedLamb

__all__ = [
    "NpuFusedAdadelta",
    "NpuFusedAdam",
    "NpuFusedAdamP",
    "NpuFusedAdamW",
    "NpuFusedBertAdam",
    "NpuFusedLamb",
    "NpuFusedRMSprop",
    "NpuFusedRMSpropTF",
    "NpuFusedSGD",
]
