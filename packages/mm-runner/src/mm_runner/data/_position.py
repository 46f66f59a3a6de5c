"""Where a run is in its data, and telling samplers of it."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["DataPosition", "announce_epoch"]


class DataPosition(NamedTuple):
    """Where a run is in its data.

    ``epoch`` and ``batch`` count passes and, in the one under way, batches of this process.
    ``samples`` is what all processes have drawn of it, ``None`` if batches differ in size; then
    ``num_batches`` per pass, ``None`` if unknown, and ``state``, that of the loader or dataset of
    this process if it has one. ``order`` is the step after which a run last began its data anew, in
    an order of their own; 0 is the order of its seed.
    """

    epoch: int = 0
    batch: int = 0
    samples: int | None = None
    num_batches: int | None = None
    state: Any = None
    order: int = 0

    @property
    def is_begun(self) -> bool:
        """Whether the pass is under way."""
        return self.batch > 0 or bool(self.samples)

    @property
    def is_complete(self) -> bool:
        """Whether the pass has no batch left."""
        return self.num_batches is not None and self.batch >= self.num_batches


def announce_epoch(loader: Any, epoch: int) -> None:
    """Tell the sampler of ``loader``, or that of its batch sampler, the epoch if it asks for it."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    for sampler in (
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    ):
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
            return
