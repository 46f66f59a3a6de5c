"""A config-driven PyTorch Runner: registries, loops, hooks, data and checkpoints."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from .errors import (
    CheckpointError,
    ComponentNotFoundError,
    ConfigError,
    MMRunnerError,
    WorkDirError,
)

if TYPE_CHECKING:
    from .config import Config
    from .runner import Runner

__all__ = [
    "CheckpointError",
    "ComponentNotFoundError",
    "Config",
    "ConfigError",
    "MMRunnerError",
    "Runner",
    "WorkDirError",
]
__version__ = version("mm-runner")


def __getattr__(name: str) -> Any:
    """Import the Runner on first use: ``import mm_runner`` stays as cheap as its errors."""
    if name == "Config":
        from .config import Config  # noqa: PLC0415

        return Config
    if name == "Runner":
        from .runner import Runner  # noqa: PLC0415

        return Runner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
