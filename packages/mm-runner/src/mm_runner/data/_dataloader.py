"""A ``DataLoader`` from its config."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from mm_runner.errors import ConfigError
from mm_runner.registry import (
    DATA_SAMPLERS,
    DATASETS,
    FUNCTIONS,
    build_from_cfg,
    call_component,
)

from ._dealing import deal_out
from ._settings import DataSettings

__all__ = ["DataSettings", "build_dataloader", "num_batches"]


def build_dataloader(
    cfg: DataLoader[Any] | Mapping[str, Any], settings: DataSettings, *, shuffle: bool, where: str
) -> DataLoader[Any]:
    """Build a dataloader.

    Args:
        cfg: A ready ``DataLoader``, returned as it is unless its samples have still to be dealt out
            to the processes; or a dict with ``dataset`` (a config or an object), optionally
            ``sampler``, ``batch_sampler``, ``collate_fn`` (a name, config or function;
            ``pseudo_collate`` by default, torch's for ``None``), ``num_batch_per_epoch`` (batches
            of one process), ``worker_init_fn``, and arguments of ``DataLoader``. ``batch_size`` is
            that of one process. Workers are started, and so seeded, each epoch, as torch does by
            default; with ``persistent_workers=True`` a resumed run draws other random numbers in
            them.
        settings: Of the run.
        shuffle: What the default sampler does when ``cfg`` names none.
        where: Path of ``cfg`` in the configuration, for messages.

    Raises:
        ConfigError: If a key is missing, unknown or of the wrong type.
    """
    if isinstance(cfg, DataLoader):
        return deal_out(cfg, settings, where)
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"{where}: a DataLoader or a dict is needed, got {cfg!r}.")
    options = dict(cfg)
    if "dataset" not in options:
        raise ConfigError(
            f"{where}.dataset: this key is missing; given: {', '.join(map(repr, cfg)) or 'none'}. "
            "It is a dataset, or a dict with its 'type' and arguments."
        )
    dataset = _build_dataset(options.pop("dataset"), where)
    if "batch_sampler" not in options and "batch_size" not in options:
        raise ConfigError(
            f"{where}.batch_size: this key is missing; given: {', '.join(map(repr, cfg))}. "
            "It is the number of samples per process and step."
        )
    num_batches = options.pop("num_batch_per_epoch", None)
    if num_batches is not None:
        if "batch_size" not in options:
            raise ConfigError(
                f"{where}.num_batch_per_epoch={num_batches!r} was given without batch_size; it "
                "counts batches of that size. Give both, or neither."
            )
        num_samples = num_batches * options["batch_size"] * settings.world_size
        dataset = Subset(dataset, range(min(len(dataset), num_samples)))  # type: ignore[arg-type]
    _add_sampling(options, dataset, settings, shuffle=shuffle, where=where)
    collate_fn = options.get("collate_fn", "pseudo_collate")
    if collate_fn is not None:
        options["collate_fn"] = _function(collate_fn, f"{where}.collate_fn")
    options["worker_init_fn"] = _worker_init(options.get("worker_init_fn"), settings, where)
    # Not the global generator: starting an epoch must not draw from the one that dropout uses.
    options.setdefault("generator", settings.generator)
    return call_component(DataLoader, {"dataset": dataset, **options}, where)  # type: ignore[no-any-return]


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


def _build_dataset(dataset: Any, where: str) -> Dataset[Any]:
    if isinstance(dataset, Mapping):
        dataset = build_from_cfg(dataset, DATASETS, where=f"{where}.dataset")
    # MMEngine's datasets may put off reading their annotations until asked.
    if hasattr(dataset, "full_init"):
        dataset.full_init()
    return dataset  # type: ignore[no-any-return]


def _add_sampling(
    options: dict[str, Any],
    dataset: Dataset[Any],
    settings: DataSettings,
    *,
    shuffle: bool,
    where: str,
) -> None:
    """Replace the configs of sampler and batch sampler in ``options`` by what they describe."""
    if options.get("shuffle") is not None:
        shuffle = bool(options.pop("shuffle"))
    sampler = options.pop("sampler", None)
    if sampler is None and not isinstance(dataset, IterableDataset):
        sampler = {"type": "DefaultSampler", "shuffle": shuffle}
    if isinstance(sampler, Mapping):
        sampler = build_from_cfg(
            sampler,
            DATA_SAMPLERS,
            {"dataset": dataset, "seed": settings.seed},
            where=f"{where}.sampler",
        )
    batch_sampler = options.pop("batch_sampler", None)
    if batch_sampler is None:
        options["sampler"] = sampler
        return
    if isinstance(batch_sampler, Mapping):
        defaults = {"sampler": sampler}
        if "batch_size" in options:
            defaults["batch_size"] = options.pop("batch_size")
        batch_sampler = build_from_cfg(
            batch_sampler, DATA_SAMPLERS, defaults, where=f"{where}.batch_sampler"
        )
    options["batch_sampler"] = batch_sampler


def _function(function: Any, where: str) -> Callable[..., Any]:
    """Resolve a function given as a name, as ``dict(type=name, **kwargs)``, or as itself."""
    if isinstance(function, str):
        return FUNCTIONS.get(function)
    if isinstance(function, Mapping):
        kwargs = dict(function)
        if "type" not in kwargs:
            raise ConfigError(f"{where}: the key 'type' is missing in {function!r}.")
        found = _function(kwargs.pop("type"), where)
        return functools.partial(found, **kwargs) if kwargs else found
    if not callable(function):
        raise ConfigError(
            f"{where}: a name ({', '.join(FUNCTIONS.names())}), a dict with 'type' or a function "
            f"is needed, got {function!r}."
        )
    return function  # type: ignore[no-any-return]


def _worker_init(function: Any, settings: DataSettings, where: str) -> Callable[..., Any]:
    if function is None:
        return functools.partial(_seed_worker, seed=settings.seed, rank=settings.rank)
    return _function(function, f"{where}.worker_init_fn")


def _seed_worker(worker_id: int, seed: int, rank: int) -> None:
    """Seed a worker so that no two workers of any two ranks draw the same numbers.

    torch has seeded it already, but alike on every rank whose generator is seeded alike. The
    distance between ranks leaves room for more workers than a machine has processors.
    """
    base = torch.initial_seed() + seed + 10_000 * rank + worker_id
    random.seed(base)
    torch.manual_seed(base % 2**63)
    try:
        import numpy as np  # noqa: PLC0415 - optional
    except ImportError:
        return
    np.random.seed(base % 2**32)  # noqa: NPY002 - the generator that augmentations use
