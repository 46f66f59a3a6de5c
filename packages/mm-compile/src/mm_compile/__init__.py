"""torch.compile from a config: checked when built, in place, undoable, with a report."""

from importlib.metadata import version

from ._bucketing import BucketingCollate
from ._cache._pack import pack_cache, unpack_cache
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
from ._handle import CompileHandle
from ._preflight import CompileSupport, can_compile
from ._receipt._breaks import GraphBreak
from ._receipt._regions import RegionStatus, StepTimes
from ._receipt._report import CompileReport
from ._verify._compare import Verified

__all__ = [
    "AlreadyCompiledError",
    "BucketingCollate",
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
