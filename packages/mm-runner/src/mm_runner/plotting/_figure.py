"""A matplotlib figure, if matplotlib is installed."""

from __future__ import annotations

from typing import Any

from mm_runner.errors import MMRunnerError

__all__ = ["new_figure"]


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
