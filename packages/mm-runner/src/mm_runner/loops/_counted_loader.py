"""The training batches, as a body of a subclass's own draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader
from typing_extensions import Self

__all__ = ["CountedLoader", "DrawnBatches", "beside", "uncounted"]


class CountedLoader:
    """A loader whose batches are counted while an epoch of a training draws them.

    In everything else it is the loader.

    Args:
        loader: The loader itself.
        draw: Returns the batches that are drawn next.
    """

    def __init__(self, loader: Any, draw: Callable[[], Iterator[Any]]) -> None:
        vars(self).update(_loader=loader, _draw=draw)

    def __iter__(self) -> Iterator[Any]:
        return DrawnBatches(self._loader, self._draw)

    def __len__(self) -> int:
        return len(self._loader)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._loader)  # for isinstance()

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)


def uncounted(loader: Any) -> Any:
    """Return the loader itself, for whoever goes through the data beside the training."""
    return vars(loader)["_loader"] if type(loader) is CountedLoader else loader


def beside(loader: Any) -> Iterator[Any]:
    """Return all batches, for a look that leaves alone a pass that is under way.

    Workers that stay serve one pass at a time, and would drop it; those of the look are its own.
    """
    has_begun = getattr(loader, "_iterator", None) is not None
    if has_begun and isinstance(loader, DataLoader):
        return loader._get_iterator()  # noqa: SLF001 - torch has no public name for it
    return iter(loader)


class DrawnBatches:
    """An iterator that finds out which batches are drawn when the first is asked for.

    Args:
        loader: The loader.
        draw: Returns the batches.
    """

    def __init__(self, loader: Any, draw: Callable[[], Iterator[Any]]) -> None:
        self._loader, self._draw = loader, draw
        self._batches: Iterator[Any] | None = None

    def renew(self) -> None:
        """Find out once more, with the next batch that is asked for."""
        self._batches = None

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches = self._draw()
        return next(self._batches)
