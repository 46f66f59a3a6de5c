"""How long a training waits for its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mm_runner.data import BatchFeed
    from mm_runner.run_view import RunView

__all__ = ["DataWaits", "train_feed_of"]


def train_feed_of(runner: RunView) -> BatchFeed | None:
    """Return what times the training batches; ``None`` in a loop of the user's own."""
    feed: BatchFeed | None = getattr(getattr(runner.train_loop, "batches", None), "feed", None)
    return feed


class DataWaits:
    """Tells how long the training waited for its data since it was last asked.

    Nothing else counts: neither a checkpoint that is written between two steps, nor a validation.

    Args:
        feed: Times the batches.
    """

    def __init__(self, feed: BatchFeed) -> None:
        self._feed = feed
        self._told_s = feed.loaded_s + feed.copied_s

    @classmethod
    def of_run(cls, runner: RunView) -> DataWaits | None:
        """Return those of a run; ``None`` in a loop of the user's own that times no batches."""
        feed = train_feed_of(runner)
        return None if feed is None else cls(feed)

    def take_s(self) -> float:
        """Return the seconds since the last call, or since this was made."""
        before, self._told_s = self._told_s, self._feed.loaded_s + self._feed.copied_s
        return self._told_s - before
