"""torch.compile from a config: checked when built, in place, undoable, with a report."""

from importlib.metadata import version

from ._bucketing import BucketingCollate
from ._compile import compile_model
from ._errors import (
    AlreadyCompiledError,
    CompileError,
    ConfigError,
    MMCompileError,
    RecompileLimitError,
    TorchVersionError,
)
from ._handle import CompileHandle, RegionStatus
from ._preflight import CompileSupport, can_compile
from ._report import CompileReport

__all__ = [
    "AlreadyCompiledError",
    "BucketingCollate",
    "CompileError",
    "CompileHandle",
    "CompileReport",
    "CompileSupport",
    "ConfigError",
    "MMCompileError",
    "RecompileLimitError",
    "RegionStatus",
    "TorchVersionError",
    "__version__",
    "can_compile",
    "compile_model",
]
__version__ = version("mm-compile")


def __dir__() -> list[str]:
    return __all__
