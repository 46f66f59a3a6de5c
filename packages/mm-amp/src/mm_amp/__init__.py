"""Mixed precision, gradient accumulation and clipping for any PyTorch loop."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from mm_amp._errors import (
    ConfigError,
    ConfigTypeError,
    MMAmpError,
    NonFiniteError,
    TorchVersionError,
    UnsupportedError,
)
from mm_amp._precision._autocast import autocast
from mm_amp._wrapper._amp_optim_wrapper import AmpOptimWrapper
from mm_amp._wrapper._optim_wrapper import OptimWrapper
from mm_amp._wrapper._result import StepResult

if TYPE_CHECKING:
    from mm_amp._precision._islands import Fp32Islands, add_fp32_islands
    from mm_amp._precision._receipt import AmpReceipt, ModuleWork, amp_receipt
    from mm_amp._wrapper._optim_wrapper_dict import OptimWrapperDict

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
]
__version__: str  # read from the installed package on first use

# Imported on first use, to keep the import cheap.
_LAZY = {
    "Fp32Islands": "_precision._islands",
    "OptimWrapperDict": "_wrapper._optim_wrapper_dict",
    "AmpReceipt": "_precision._receipt",
    "ModuleWork": "_precision._receipt",
    "add_fp32_islands": "_precision._islands",
    "amp_receipt": "_precision._receipt",
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
