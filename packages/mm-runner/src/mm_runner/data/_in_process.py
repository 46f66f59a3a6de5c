"""Batches that this process loads itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import profiler
from torch.utils import data
from torch.utils.data import DataLoader, IterableDataset, _utils, dataloader
from typing_extensions import Self

from ._failing_sample import without_stop_iteration

__all__ = ["begin_batches"]

# As torch's iterator announces itself.
_PROFILED_AS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_is_profiling_here: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined] # noqa: SLF001
# They are sharded over processes by torch's iterator; later versions have none.
_PIPES = tuple(
    getattr(data, name) for name in ("IterDataPipe", "MapDataPipe") if hasattr(data, name)
)


def begin_batches(loader: Any) -> Iterator[Any]:
    """Begin a pass over ``loader``: what ``iter(loader)`` gives, with the same random numbers.

    Of a plain ``DataLoader`` without workers torch's own iterator announces each batch to profilers
    that are not there, which takes a good part of the time that a small batch does. It is left out
    while no profiler runs, and torch's iterator is taken where somebody has replaced a part of it,
    as profilers do.
    """
    is_plain = (
        type(loader) is DataLoader
        and loader.batch_sampler is not None
        and not (loader.num_workers or loader.pin_memory or loader.timeout)
        and not isinstance(loader.dataset, (IterableDataset, *_PIPES))
    )
    if is_plain and _is_torchs_own(loader):
        return _Batches(loader)
    batches: Iterator[Any] = iter(loader)
    fetcher = getattr(batches, "_dataset_fetcher", None)  # of torch's iterator without workers
    if isinstance(fetcher, _utils.fetch._MapDatasetFetcher):  # noqa: SLF001
        batches._dataset_fetcher = _Fetcher(fetcher)  # type: ignore[attr-defined] # noqa: SLF001
    return batches


class _Fetcher:
    """Fetches batches by index; no error of the dataset ends the pass as if it were its end.

    Args:
        fetcher: torch's own, by whose frames an error tells the sample that it was about.
    """

    def __init__(self, fetcher: Any) -> None:
        self._fetch: Callable[[Any], Any] = fetcher.fetch
        # torchdata's loader asks for the dataset, of an iterable one also for its end.
        vars(self).update(vars(fetcher))

    def fetch(self, indices: Any) -> Any:
        try:
            return self._fetch(indices)
        except StopIteration as error:
            raise without_stop_iteration(error) from error


class _Batches:
    """Iterates over a loader as torch's iterator does, which goes on after an error, too."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        fetcher = _utils.fetch._MapDatasetFetcher(  # noqa: SLF001
            loader.dataset, auto_collation=True, collate_fn=loader.collate_fn, drop_last=False
        )
        self._fetch = _Fetcher(fetcher).fetch
        self._indices = iter(loader.batch_sampler)  # type: ignore[arg-type]
        # Workers would be seeded with it: torch draws it without workers, too.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if _is_profiling_here() or getattr(profiler, "_is_profiler_enabled", False):
            with profiler.record_function(_PROFILED_AS):
                return self._fetch(next(self._indices))
        return self._fetch(next(self._indices))


def _is_torchs_own(loader: DataLoader[Any]) -> bool:
    """Tell whether nobody has replaced what a pass over ``loader`` goes through."""
    iterator = dataloader._SingleProcessDataLoaderIter  # noqa: SLF001
    parts: tuple[Any, ...] = (
        DataLoader.__iter__,
        DataLoader._get_iterator,  # noqa: SLF001
        iterator.__init__,
        iterator.__next__,
        iterator._next_data,  # noqa: SLF001
    )
    written_in = {getattr(part, "__globals__", {}).get("__name__") for part in parts}
    return written_in == {dataloader.__name__} and "_get_iterator" not in vars(loader)
