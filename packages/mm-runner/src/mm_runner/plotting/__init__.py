"""Curves of a run, drawn from its ``scalars.jsonl`` (needs the extra ``mm-runner[plot]``)."""

from ._curves import plot_curves, read_scalars

__all__ = ["plot_curves", "read_scalars"]
