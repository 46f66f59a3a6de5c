"""Exceptions of mm-runner. A message names the value given, those allowed, and the remedy."""

from __future__ import annotations

import traceback
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "CheckpointWriteError",
    "ComponentNotFoundError",
    "ConfigError",
    "MMRunnerError",
    "ModelOutputError",
    "PredictionsError",
    "RunStopped",
    "TorchVersionError",
    "WorkDirError",
    "did_you_mean",
    "import_extra",
    "with_place",
]


class MMRunnerError(Exception):
    """Base of every error that mm-runner raises on purpose."""


class ConfigError(MMRunnerError, ValueError):
    """A configuration cannot be used; the message names the path of the offending key."""


class ComponentNotFoundError(MMRunnerError, LookupError):
    """No component of the given name is registered or installed."""


class WorkDirError(MMRunnerError, OSError):
    """The work directory cannot be created or written."""


class CheckpointError(MMRunnerError, RuntimeError):
    """A checkpoint cannot be made or read; the message names the file or the entry."""


class CheckpointWriteError(CheckpointError):
    """A checkpoint could not be written to the disk; those before it are untouched."""


class ModelOutputError(MMRunnerError, TypeError):
    """The model returned a value that its caller cannot use."""


class PredictionsError(MMRunnerError, RuntimeError):
    """Predictions cannot be written or read; the message names the file."""


class TorchVersionError(MMRunnerError, RuntimeError):
    """A feature needs another version of torch; the message names it, and the one there is."""


class RunStopped(SystemExit):
    """A run was asked to leave early, and has saved a checkpoint.

    ``code`` is 75 after a preemption (SIGTERM, SIGUSR1), which asks the scheduler to start the run
    again, and 130 after Ctrl-C. A program that catches it continues; it has 30 s to end before
    another SIGTERM ends it.
    """


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return ``" Did you mean 'x'?"`` for the names of ``known`` near ``name``, or ``""``.

    Args:
        name: What was given.
        known: What there is.
        cutoff: How alike two names must be, from 0 to 1.

    Example:
        >>> did_you_mean("SDG", ["SGD", "Adam"])
        " Did you mean 'SGD'?"
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name.lower(), by_lower, n=3, cutoff=cutoff)
    near = [by_lower[match] for match in matches]
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def import_extra(module: str, extra: str, where: str) -> Any:
    """Import a module of a library that an extra of mm-runner brings.

    Args:
        module: Its full name.
        extra: Of mm-runner.
        where: What needs it, for the message.

    Raises:
        ConfigError: If it cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{where} needs {module}, which cannot be imported ({error}). Install the extra: pip "
            f"install 'mm-runner[{extra}]'."
        ) from error


def with_place(error: Exception) -> str:
    """Return the kind and text of an error of somebody's own code, and the line that raised it.

    Example:
        >>> with_place(NameError("name 'x' is not defined"))
        "NameError: name 'x' is not defined"
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    is_placed = isinstance(error, SyntaxError)  # by its own text
    return f"{type(error).__name__}: {error}{'' if is_placed else place}"
