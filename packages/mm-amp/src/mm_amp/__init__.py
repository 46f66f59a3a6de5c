"""Mixed precision, gradient accumulation and clipping for any PyTorch loop."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ._amp_optim_wrapper import AmpOptimWrapper
from ._autocast import autocast
from ._errors import (
    ConfigError,
    ConfigTypeError,
    MMAmpError,
    NonFiniteError,
    TorchVersionError,
    UnsupportedError,
)
from ._optim_wrapper import OptimWrapper
from ._result import StepResult

if TYPE_CHECKING:
    from ._amp_receipt import amp_receipt
    from ._anomalous_params import detect_anomalous_params
    from ._fp32_islands import Fp32Islands, add_fp32_islands
    from ._optim_wrapper_dict import OptimWrapperDict
    from ._receipt import AmpReceipt, ModuleWork

__all__ = [
    "AmpOptimWrapper",
    "AmpReceipt",
    "ConfigError",
    "ConfigTypeError",
    "Fp32Islands",
    "MMAmpError",
    "ModuleWork",
    "NonFiniteError",
    "OptimWrapper",
    "OptimWrapperDict",
    "StepResult",
    "TorchVersionError",
    "UnsupportedError",
    "add_fp32_islands",
    "amp_receipt",
    "autocast",
    "detect_anomalous_params",
]
__version__: str  # read from the installed package when asked for

# Imported when asked for, to keep the import cheap: what is used once, or not at all.
_LAZY = {
    "Fp32Islands": "_fp32_islands",
    "OptimWrapperDict": "_optim_wrapper_dict",
    "AmpReceipt": "_receipt",
    "ModuleWork": "_receipt",
    "add_fp32_islands": "_fp32_islands",
    "amp_receipt": "_amp_receipt",
    "detect_anomalous_params": "_anomalous_params",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    elif name == "__version__":
        value = version("mm-amp")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
