"""Where a loss falls fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["smoothed_losses", "steepest_rate"]

# How much of the average so far stays in it.
_MEMORY = 0.9
# Of all steps, on either side of the one whose slope is asked for; and at least.
_REACH, _LEAST_REACH = 0.05, 2


def smoothed_losses(losses: Sequence[float]) -> list[float]:
    """Return exponential moving averages of ``losses``, corrected for where they begin.

    Example:
        >>> smoothed_losses([2.0])
        [2.0]
    """
    smoothed, average = [], 0.0
    for number, loss in enumerate(losses, 1):
        average = _MEMORY * average + (1 - _MEMORY) * loss
        smoothed.append(average / (1 - _MEMORY**number))
    return smoothed


def steepest_rate(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the rate where the loss falls most steeply over the logarithm of the rate.

    The slope at step i is that of the line fitted by least squares to the losses of the steps from
    i - h to i + h, h being a twentieth of all, and two at least:

        slope(i) = sum(k * loss(i + k)) / sum(k * k), for k from -h to h

    in which the distance between the logarithms, always the same, is left out. Steps count that
    come before the smoothed loss is at its best.

    Args:
        rates: Growing exponentially.
        losses: Of the steps with these rates.

    Returns:
        ``None`` if the loss falls nowhere.
    """
    reach = max(_LEAST_REACH, round(_REACH * len(losses)))
    smoothed = smoothed_losses(losses)
    end = min(len(losses) - reach, smoothed.index(min(smoothed)) + 1) if losses else 0
    offsets = range(-reach, reach + 1)
    slopes = {
        index: math.fsum(k * losses[index + k] for k in offsets) for index in range(reach, end)
    }
    steepest = min(slopes, key=lambda index: slopes[index], default=None)
    return None if steepest is None or slopes[steepest] >= 0 else rates[steepest]
