"""A config-driven PyTorch Runner: registries, loops, hooks, data and checkpoints."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from ._lazy import importing
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

if not TYPE_CHECKING:  # ``import mm_runner`` stays as cheap as its errors
    __getattr__, __dir__ = importing(__name__, "config", "runner")
