"""Ascend NPUs: whether one is there, and their fused optimizers by name on every machine."""

from importlib.metadata import version

from ._availability import is_npu_available, npu_unavailable_reason
from ._errors import (
    ConfigError,
    MMNpuError,
    NpuUnavailableError,
    PortableOptimizerWarning,
    TorchVersionError,
)
from ._optimizers import (
    NpuFusedAdadelta,
    NpuFusedAdam,
    NpuFusedAdamP,
    NpuFusedAdamW,
    NpuFusedBertAdam,
    NpuFusedLamb,
    NpuFusedRMSprop,
    NpuFusedRMSpropTF,
    NpuFusedSGD,
)

__all__ = [
    "ConfigError",
    "MMNpuError",
    "NpuFusedAdadelta",
    "NpuFusedAdam",
    "NpuFusedAdamP",
    "NpuFusedAdamW",
    "NpuFusedBertAdam",
    "NpuFusedLamb",
    "NpuFusedRMSprop",
    "NpuFusedRMSpropTF",
    "NpuFusedSGD",
    "NpuUnavailableError",
    "PortableOptimizerWarning",
    "TorchVersionError",
    "__version__",
    "is_npu_available",
    "npu_unavailable_reason",
]
__version__ = version("mm-npu")


def __dir__() -> list[str]:
    return __all__
