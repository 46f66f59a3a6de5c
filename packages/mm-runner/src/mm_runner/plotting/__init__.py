"""Curves of runs, drawn from their ``scalars.jsonl`` (needs the extra ``mm-runner[plot]``)."""

from ._comparison import plot_runs
from ._curves import plot_curves, read_scalars
from ._rates import plot_rates

__all__ = ["plot_curves", "plot_rates", "plot_runs", "read_scalars"]
