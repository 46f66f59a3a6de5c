"""Mixed precision, gradient accumulation and clipping for any PyTorch loop."""

from importlib.metadata import version

from ._amp_optim_wrapper import AmpOptimWrapper
from ._autocast import autocast
from ._errors import ConfigError, ConfigTypeError, MMAmpError, TorchVersionError
from ._optim_wrapper import OptimWrapper
from ._result import StepResult

__all__ = [
    "AmpOptimWrapper",
    "ConfigError",
    "ConfigTypeError",
    "MMAmpError",
    "OptimWrapper",
    "StepResult",
    "TorchVersionError",
    "autocast",
]
__version__ = version("mm-amp")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
