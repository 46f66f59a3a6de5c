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
# ``import mm_runner`` stays as cheap as its errors.
__getattr__ = importing(__name__, {"Config": "config", "Runner": "runner"})


def __dir__() -> list[str]:
    return __all__
