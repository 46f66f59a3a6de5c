"""Ascend NPUs: whether one is there, and their fused optimizers by name on every machine."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._availability import is_npu_available, npu_unavailable_reason
    from ._devices._profiler import npu_profiler
    from ._devices._report import NpuReport, npu_report
    from ._devices._switches import NpuSwitches, read_npu_switches, set_npu_switches
    from ._errors import (
        ConfigError,
        FusedOptimizerError,
        MMNpuError,
        NpuUnavailableError,
        PortableOptimizerWarning,
        UntrainedParameterWarning,
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

# Imported when asked for: a broken torch_npu ends import torch itself, and mm-npu env reports that.
_MODULES = (
    "_errors",
    "_availability",
    "_devices._switches",
    "_devices._profiler",
    "_devices._report",
    "_optimizers",
)

__all__ = [
    "ConfigError",
    "FusedOptimizerError",
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
    "NpuReport",
    "NpuSwitches",
    "NpuUnavailableError",
    "PortableOptimizerWarning",
    "UntrainedParameterWarning",
    "__version__",
    "is_npu_available",
    "npu_profiler",
    "npu_report",
    "npu_unavailable_reason",
    "read_npu_switches",
    "set_npu_switches",
]
__version__: str  # read from the installed package when asked for


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name == "__version__":
        value: Any = version("mm-npu")
    elif name in __all__:
        modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
        value = next(getattr(module, name) for module in modules if hasattr(module, name))
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
