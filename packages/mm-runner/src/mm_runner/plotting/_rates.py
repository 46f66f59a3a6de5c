"""The losses of a learning rate range test, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._figure import new_figure, save_figure

__all__ = ["plot_rates"]


def plot_rates(points: Sequence[Any], suggestion: float | None, picture: str | Path) -> Path:
    """Draw losses over learning rates.

    Args:
        points: With ``lr``, ``loss`` and ``smoothed``; of none the picture says so.
        suggestion: A rate to be marked.
        picture: File to write; its ending says the format (``.png``, ``.svg``).

    Returns:
        The file written.

    Raises:
        MMRunnerError: If matplotlib is not installed.
        WorkDirError: If nothing can be written there.
    """
    figure = new_figure(6.4, 3.6)
    axes = figure.subplots()
    rates = [point.lr for point in points]
    smoothed = [point.smoothed for point in points]
    if not rates:
        axes.text(0.5, 0.5, "no step had a finite loss", ha="center", transform=axes.transAxes)
        return save_figure(figure, picture)
    room = 0.2 * (max(smoothed) - min(smoothed)) or 1.0
    bounds = (min(point.loss for point in points) - room, max(smoothed) + room)
    axes.plot(rates, [point.loss for point in points], alpha=0.4, label="loss")
    axes.plot(rates, smoothed, label="smoothed")
    if suggestion is not None:
        axes.axvline(
            suggestion, color="black", linestyle=":", label=f"falls fastest: {suggestion:.2g}"
        )
    # A loss that diverges would leave no room for the rest.
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss", ylim=bounds)
    axes.grid(alpha=0.3)
    axes.legend()
    return save_figure(figure, picture)
