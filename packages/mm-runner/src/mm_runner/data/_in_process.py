"""Batches that this process loads itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import data
from torch.utils.data import DataLoader, IterableDataset, _utils

__all__ = ["begin_batches"]

# As torch's iterator announces itself.
_PROFILED_AS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_is_profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined] # noqa: SLF001
# They are sharded over processes by torch's iterator; later versions have none.
_PIPES = tuple(
    getattr(data, name) for name in ("IterDataPipe", "MapDataPipe") if hasattr(data, name)
)


def begin_batches(loader: Any) -> Iterator[Any]:
    """Begin a pass over ``loader``: what ``iter(loader)`` gives, with the same random numbers.

    Of a plain ``DataLoader`` without workers torch's own iterator announces each batch to profilers
    that are not there, which takes a good part of the time that a small batch does.
    """
    # torch's own, by which an error's frames tell the sample that it was about.
    fetcher: Any = getattr(_utils.fetch, "_MapDatasetFetcher", None)
    if (
        fetcher is None
        or type(loader) is not DataLoader
        or loader.num_workers
        or loader.pin_memory
        or loader.batch_sampler is None
        or isinstance(loader.dataset, (IterableDataset, *_PIPES))
    ):
        return iter(loader)
    batches = iter(loader.batch_sampler)
    # Workers would be seeded with it: torch draws it without workers, too.
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    return _load(fetcher(loader.dataset, True, loader.collate_fn, False).fetch, batches)  # noqa: FBT003


def _load(fetch: Callable[[Any], Any], batches: Iterator[Any]) -> Iterator[Any]:
    for indices in batches:
        if _is_profiling():
            with torch.autograd.profiler.record_function(_PROFILED_AS):
                fetched = fetch(indices)
            yield fetched
        else:
            yield fetch(indices)
