"""Ascend NPUs: whether one is there, and their fused optimizers by name on every machine."""

from importlib.metadata import version

from ._availability import is_npu_available, npu_unavailable_reason
from ._errors import ConfigError, MMNpuError, NpuUnavailableError, PortableOptimizerWarning
from ._optimizers import NpuFusedAdamW

__all__ = [
    "ConfigError",
    "MMNpuError",
    "NpuFusedAdamW",
    "NpuUnavailableError",
    "PortableOptimizerWarning",
    "__version__",
    "is_npu_available",
    "npu_unavailable_reason",
]
__version__ = version("mm-npu")


def __dir__() -> list[str]:
    return __all__
