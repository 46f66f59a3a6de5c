"""torch.compile from a config: checked when built, in place, undoable, with a report."""

from importlib.metadata import version

from ._cache._pack import pack_cache, unpack_cache
from ._can_compile import CompileSupport, can_compile
from ._compile import compile_model
from ._errors import (
    AlreadyCompiledError,
    CacheFileError,
    CompileError,
    ConfigError,
    MMCompileError,
    NotAModelError,
    NumericsError,
    RecompileLimitError,
    TorchVersionError,
)
from ._failure import GraphBreak
from ._handle import CompileHandle
from ._report import CompileReport, RegionStatus, StepTimes, Verified

__all__ = [
    "AlreadyCompiledError",
    "CacheFileError",
    "CompileError",
    "CompileHandle",
    "CompileReport",
    "CompileSupport",
    "ConfigError",
    "GraphBreak",
    "MMCompileError",
    "NotAModelError",
    "NumericsError",
    "RecompileLimitError",
    "RegionStatus",
    "StepTimes",
    "TorchVersionError",
    "Verified",
    "__version__",
    "can_compile",
    "compile_model",
    "pack_cache",
    "unpack_cache",
]
__version__ = version("mm-compile")


def __dir__() -> list[str]:
    return __all__
