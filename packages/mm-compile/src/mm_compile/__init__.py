"""torch.compile from a config: checked when built, in place, undoable, with a report."""

from importlib.metadata import version

from ._compile import compile_model
from ._errors import AlreadyCompiledError, ConfigError, MMCompileError, TorchVersionError
from ._handle import CompileHandle
from ._preflight import CompileSupport, can_compile
from ._report import CompileReport

__all__ = [
    "AlreadyCompiledError",
    "CompileHandle",
    "CompileReport",
    "CompileSupport",
    "ConfigError",
    "MMCompileError",
    "TorchVersionError",
    "__version__",
    "can_compile",
    "compile_model",
]
__version__ = version("mm-compile")


def __dir__() -> list[str]:
    return __all__
