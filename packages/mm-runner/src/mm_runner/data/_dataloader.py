"""A ``DataLoader`` from its config, and its worker processes."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.registry import DATA_SAMPLERS, DATASETS, build_from_cfg, need_mapping

from ._batches import resolve_function
from ._datasets import check_dataset
from ._feed import has_streams
from ._sampler import DataSettings, RankSampler, SeekableBatchSampler, batch_seed, seed_process
from ._stream import MarkingCollate, StreamDataset, StreamLoader, StreamSampler

_POLL_S = 5.0  # how often a worker looks whether its main process lives

# Samplers of torch that give each process all samples.
_UNSPLIT = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


def build_dataloader(
    cfg: DataLoader[Any] | Mapping[str, Any], settings: DataSettings, *, shuffle: bool, where: str
) -> DataLoader[Any]:
    """Build a dataloader.

    Args:
        cfg: A ready ``DataLoader``, returned as it is unless its samples are yet to be split
            over the processes; or a dict with ``dataset`` (a config; a list of samples or another
            object with indices and a length; or an ``IterableDataset``), optionally ``sampler``,
            ``batch_sampler``, ``collate_fn`` (a name, config or function; ``pseudo_collate`` by
            default, torch's for ``None``), ``num_batch_per_epoch`` (batches of one process),
            ``worker_init_fn``, ``disable_subprocess_warning`` (MMEngine's, without effect), and
            arguments of ``DataLoader``. ``batch_size`` is that of one process. Workers seed Python,
            torch and NumPy for each batch, by the seed of the run, the process, the epoch and the
            batch. Unless said otherwise, workers stay over epochs (not those of an iterable
            dataset), and batches for an accelerator are put into pinned memory.
        settings: Of the run.
        shuffle: What the default sampler does when ``cfg`` names none.
        where: Path of ``cfg`` in the configuration, for messages.

    Raises:
        ConfigError: If a key is missing, unknown or of the wrong type.
    """
    if isinstance(cfg, DataLoader):
        return _split_by_rank(cfg, settings, where)
    options = dict(need_mapping(cfg, where, "a DataLoader or a dict"))
    dataset = _dataset_of(options, settings, where)
    _add_sampling(options, dataset, settings, shuffle=shuffle, where=where)
    collate_fn = options.get("collate_fn", "pseudo_collate")
    if collate_fn is not None:
        options["collate_fn"] = resolve_function(collate_fn)
    options.pop("disable_subprocess_warning", None)
    init = options.pop("worker_init_fn", None)
    options["worker_init_fn"] = functools.partial(
        _start_worker,
        seed=settings.seed,
        rank=settings.rank,
        then=None if init is None else resolve_function(init),
    )
    # Not the global generator: starting an epoch must not draw from the one that dropout uses.
    options.setdefault("generator", settings.generator)
    # Those of an iterable dataset are seeded as they start: a run resumed at an epoch starts them.
    if options.get("num_workers") and not isinstance(dataset, IterableDataset):
        options.setdefault("persistent_workers", True)
    device = settings.device
    if device is not None and has_streams(device):  # copies to it start from pinned memory
        options.setdefault("pin_memory", True)
        if device.type != "cuda" and not hasattr(torch, "accelerator"):
            options.setdefault("pin_memory_device", device.type)  # then torch asks for it
    # Not by torch's annotation, which a list of samples would not fit.
    sends_places = isinstance(dataset, StreamDataset) and dataset.has_state
    options |= {"type": StreamLoader if sends_places else DataLoader, "dataset": dataset}
    loader: DataLoader[Any] = build_from_cfg(options, DATASETS, where=where)
    if loader.batch_sampler is not None and not isinstance(dataset, IterableDataset):
        seekable = SeekableBatchSampler(
            loader.batch_sampler, settings, has_workers=loader.num_workers > 0
        )
        # Given as an argument, it would leave the loader without its batch_size and drop_last.
        object.__setattr__(loader, "batch_sampler", seekable)
    if sends_places:
        loader.collate_fn = MarkingCollate(loader.collate_fn, dataset)
    return loader


def num_batches(loader: DataLoader[Any], where: str) -> int:
    """Return the number of batches in an epoch.

    Raises:
        ConfigError: If the dataset has no length, naming the loader by ``where``.
    """
    try:
        return len(loader)
    except TypeError as error:
        raise ConfigError(
            f"{where}: the dataset {type(loader.dataset).__name__} has no length, and a loop needs "
            "to know its epochs. Give it a __len__, or use a loop of your own as 'type'."
        ) from error


def _dataset_of(options: dict[str, Any], settings: DataSettings, where: str) -> Any:
    """Pop the dataset from ``options`` and build it, cut to ``num_batch_per_epoch`` batches."""
    dataset = options.pop("dataset", None)
    if isinstance(dataset, Mapping):
        dataset = build_from_cfg(dataset, DATASETS, where=f"{where}.dataset")
    check_dataset(dataset, f"{where}.dataset")
    if hasattr(dataset, "full_init"):  # MMEngine's datasets may put off reading annotations
        dataset.full_init()
    if options.get("batch_size", 1) is None and options.get("batch_sampler") is None:
        if not isinstance(dataset, IterableDataset):
            raise ConfigError(
                f"{where}.batch_size: null is for an IterableDataset that gives whole batches; "
                f"got {type(dataset).__name__}. Give the number of samples."
            )
        options.setdefault("collate_fn", None)
    num_batches = options.pop("num_batch_per_epoch", None)
    if num_batches is None:
        return dataset
    batch_size = options.get("batch_size")
    is_stream = isinstance(dataset, (IterableDataset, StreamDataset))
    has_indices = hasattr(dataset, "__len__") and not is_stream
    if not has_indices or not batch_size:
        raise ConfigError(
            f"{where}.num_batch_per_epoch: a batch_size, and a dataset with a length and indices, "
            f"are needed; got {batch_size!r} and {type(dataset).__name__}."
        )
    size = min(len(dataset), num_batches * batch_size * settings.world_size)
    first: Any = Subset(dataset, range(size))
    if hasattr(dataset, "metainfo"):  # for the metrics
        first.metainfo = dataset.metainfo
    return first


def _add_sampling(
    options: dict[str, Any], dataset: Any, settings: DataSettings, *, shuffle: bool, where: str
) -> None:
    """Build the sampler and the batch sampler in ``options``.

    torch refuses arguments that cannot go together, such as ``shuffle`` and ``sampler``.
    """
    sampler, batches = options.pop("sampler", None), options.pop("batch_sampler", None)
    if isinstance(dataset, StreamDataset):
        if sampler is not None or batches is not None or options.pop("shuffle", None):
            raise ConfigError(
                f"{where}: a stream comes in its own order; remove sampler, batch_sampler and "
                "shuffle. To shuffle give its shuffle_window, and let its source shuffle shards."
            )
        sampler = {"type": StreamSampler}
    is_ready = batches is not None and not isinstance(batches, Mapping)
    if sampler is None and not is_ready and not isinstance(dataset, IterableDataset):
        wanted = options.pop("shuffle", None)
        sampler = {"type": "DefaultSampler", "shuffle": bool(shuffle if wanted is None else wanted)}
    if isinstance(sampler, Mapping):
        defaults: dict[str, Any] = {"dataset": dataset, "seed": settings.seed}
        sampler = build_from_cfg(sampler, DATA_SAMPLERS, defaults, where=f"{where}.sampler")
    if isinstance(batches, Mapping):
        defaults = {"sampler": sampler}
        if "batch_size" in options:
            defaults["batch_size"] = options.pop("batch_size")
        batches = build_from_cfg(batches, DATA_SAMPLERS, defaults, where=f"{where}.batch_sampler")
        sampler = None
    _follow_data_ranks((sampler, batches), settings, where)
    options["sampler"] = sampler
    if batches is not None:
        options["batch_sampler"] = batches
    # A custom sampler may split in its own way; torch's plain ones do not, unless each process
    # gave its own generator.
    inner = getattr(batches, "sampler", sampler)
    is_alike = type(inner) in _UNSPLIT and getattr(inner, "generator", None) is None
    if settings.world_size > 1 and is_alike:
        raise _unsplit_error(f"{where}.{'sampler' if batches is None else 'batch_sampler'}", inner)


def _follow_data_ranks(samplers: Iterable[Any], settings: DataSettings, where: str) -> None:
    """Let processes that split the layers of a model draw the same samples.

    Raises:
        ConfigError: If a sampler of another kind gives them different ones.
    """
    if settings.world_size >= mm_dist.get_world_size():
        return
    found: list[Any] = [x for one in samplers for x in (one, getattr(one, "sampler", None))]
    for one in found:
        if isinstance(one, RankSampler):
            one.rank, one.world_size = settings.rank, settings.world_size
        elif getattr(one, "num_replicas", settings.world_size) != settings.world_size:
            raise ConfigError(
                f"{where}: {type(one).__name__} splits the samples over {one.num_replicas} "
                f"processes, of which only {settings.world_size} see different data here: the "
                "others split the layers. Give dict(type='DefaultSampler')."
            )


def _unsplit_error(where: str, sampler: Any) -> ConfigError:
    return ConfigError(
        f"{where}: with {type(sampler).__name__} all processes of this run would see the same "
        "samples. Give dict(type='DefaultSampler'), or a sampler with set_epoch() that splits "
        "them, such as torch's DistributedSampler."
    )


def _split_by_rank(loader: DataLoader[Any], settings: DataSettings, where: str) -> DataLoader[Any]:
    """Return ``loader``, or one like it that gives each process its share of the samples.

    An iterable dataset has to split them by itself, as has a sampler with ``set_epoch``.
    """
    if isinstance(loader.dataset, StreamDataset):
        raise ConfigError(f"{where}: give the loader of a StreamDataset as a dict.")
    batches = loader.batch_sampler
    _follow_data_ranks((loader.sampler, batches), settings, where)
    # Not the loader's own: one that was given batches has a sampler that it never asks.
    sampler = getattr(batches, "sampler", loader.sampler)
    splits = any(hasattr(one, "set_epoch") for one in (loader.sampler, batches))
    if settings.world_size == 1 or splits or isinstance(loader.dataset, IterableDataset):
        return loader
    is_plain = type(loader) is DataLoader and type(batches) is BatchSampler
    if not is_plain or type(sampler) not in {RandomSampler, SequentialSampler}:
        raise _unsplit_error(f"{where} ({type(loader).__name__})", sampler)
    arguments = inspect.signature(DataLoader).parameters.keys()
    given = {name: getattr(loader, name, None) for name in arguments - {"dataset"}}
    cfg = {name: value for name, value in given.items() if value not in (None, "")}
    cfg |= {"dataset": loader.dataset, "sampler": None, "batch_sampler": None}
    cfg |= {name: getattr(batches, name) for name in ("batch_size", "drop_last")}
    return build_dataloader(cfg, settings, shuffle=isinstance(sampler, RandomSampler), where=where)


def _start_worker(
    worker_id: int, seed: int, rank: int, then: Callable[[int], object] | None
) -> None:
    """Ignore stop signals, seed the worker by its rank, and call the user's ``worker_init_fn``."""
    ignore_stop_signals()
    # For what it draws before the first batch, and for iterable datasets, whose batches have no
    # indices. torch has seeded it already, but alike on ranks whose generators are alike.
    seed_process(batch_seed(torch.initial_seed() + seed, rank, -1, worker_id))
    if then is not None:
        then(worker_id)


def ignore_stop_signals(_worker_id: int = 0) -> None:
    """Leave SIGINT, SIGUSR1 and SIGTERM to the main process, which still needs batches to save.

    Terminals, launchers and schedulers send these to every process of a job. On Linux a SIGTERM of
    the loader itself counts, and the worker also ends when the main process has died. Workers of
    loaders that the Runner builds do this; it may be the ``worker_init_fn`` of another loader.
    """
    for name in ("SIGINT", "SIGUSR1"):  # Windows has no SIGUSR1
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    main = multiprocessing.parent_process()
    if sys.platform == "linux" and main is not None:
        # Held back from torch's handler, which ends the worker whoever sent it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with, args=(main,), name="mm_runner-term", daemon=True).start()


def _end_with(main: Any) -> None:
    """End this worker when its loader sends SIGTERM, or the main process dies."""
    # Otherwise the main process has died already, or a fork server made this process.
    is_child = os.getppid() == main.pid
    while (os.getppid() == main.pid) if is_child else main.is_alive():
        received = signal.sigtimedwait({signal.SIGTERM}, _POLL_S)
        if received is not None and received.si_pid == main.pid:
            break
    os._exit(0)
