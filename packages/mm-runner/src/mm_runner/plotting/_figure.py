"""A matplotlib figure, if matplotlib is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mm_runner.errors import MMRunnerError, WorkDirError

__all__ = ["new_figure", "save_figure"]


def new_figure(width_in: float, height_in: float) -> Any:
    """Return an empty figure of that many inches.

    Raises:
        MMRunnerError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MMRunnerError(
            "Drawing curves needs matplotlib, which is not installed: "
            "pip install 'mm-runner[plot]'."
        ) from error
    # A Figure of its own, not pyplot: that would choose a window system for the whole process.
    return Figure(figsize=(width_in, height_in), layout="constrained")


def save_figure(figure: Any, picture: str | Path) -> Path:
    """Write ``figure``, making the folder where it goes.

    Raises:
        WorkDirError: If nothing can be written there.
    """
    path = Path(picture)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise WorkDirError(
            f"{path} was asked for; it cannot be written: {error}. Give another file."
        ) from error
    return path
