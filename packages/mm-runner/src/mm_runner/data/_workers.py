"""Ending the worker processes of data loaders in time."""

from __future__ import annotations

from typing import Any

__all__ = ["stop_persistent_workers", "stop_workers"]


def stop_workers(batches: Any) -> None:
    """End the workers behind a ``DataLoader``'s iterator now; any other iterator is left alone.

    An iterator that is given up half-way, or has persistent workers, may end up with Python's
    collector of cycles. That closes the queues to the workers first, so that they never hear of
    the end, and torch waits five seconds for each of them.
    """
    shut_down = getattr(batches, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()


def stop_persistent_workers(loader: Any) -> None:
    """End the workers that a ``DataLoader`` keeps; its next pass starts others."""
    stop_workers(getattr(loader, "_iterator", None))
    if getattr(loader, "_iterator", None) is not None:
        loader._iterator = None  # noqa: SLF001 - torch has no other way
