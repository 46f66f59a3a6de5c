"""Dataloaders and evaluators, which scripts and subclasses build by MMEngine's static methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import mm_dist
from mm_runner import evaluator as evaluators
from mm_runner.data import DataSettings, build_dataloader
from mm_runner.data._seekable import SeekableBatchSampler
from mm_runner.errors import ConfigError

if TYPE_CHECKING:
    from ._runner import Runner

__all__ = ["build_evaluator", "build_loader", "built_by", "evaluator_of_run", "loader_of_run"]


class _PartOfRun(NamedTuple):
    """What a method builds for a run, and its arguments do not say.

    Args:
        where: Path of the config.
        settings: What a loader needs to know of the run.
    """

    where: str
    settings: DataSettings | None = None


_part: ContextVar[_PartOfRun | None] = ContextVar("mm_runner_part_of_run", default=None)


def built_by(run: Runner, method: str, *arguments: Any, **options: Any) -> Any:
    """Return what a ``build_*`` method of the Runner returns.

    Raises:
        ConfigError: If it returned nothing.
    """
    built = getattr(run, method)(*arguments, **options)
    if built is None:
        raise ConfigError(f"{type(run).__name__}.{method}() returned None; return what it builds.")
    return built


def build_loader(
    dataloader: Any,
    seed: int | None = None,
    diff_rank_seed: bool = False,  # noqa: ARG001, FBT001, FBT002 - MMEngine's signature
) -> Any:
    """Build a dataloader from its config, with a share of the samples for each process.

    The loops of a run get their loaders by this; an override that calls it gets the same.

    Args:
        dataloader: A ``DataLoader`` or its config; without a sampler, samples come in order, but
            for the training of a run.
        seed: Of samplers and workers; ``None`` draws one, alike on all processes, or in a run is
            its own.
        diff_rank_seed: Accepted for MMEngine's signature; workers of each process draw by seeds of
            their own anyway.

    Raises:
        ConfigError: If a key is missing, unknown or of the wrong type.
    """
    where, settings = _part.get() or _PartOfRun("dataloader")
    if settings is None:
        seed = mm_dist.sync_random_seed() if seed is None else seed
        generator = torch.Generator().manual_seed(seed)
        settings = DataSettings(seed, generator, *mm_dist.get_dist_info())
    elif seed is not None:
        settings = settings._replace(seed=seed)
    with _building(None):  # a dataset may build a loader of its own
        shuffle = where == "train_dataloader"
        return build_dataloader(dataloader, settings, shuffle=shuffle, where=where)


def build_evaluator(evaluator: Any) -> Any:
    """Build an evaluator: from a metric, its config, a list of these, or ``dict(metrics=...)``.

    Raises:
        ComponentNotFoundError: If a ``type`` names nothing.
        ConfigError: If it is nothing of these, or arguments do not fit.
    """
    part = _part.get()
    return evaluators.build_evaluator(evaluator, where=part.where if part else "evaluator")


def loader_of_run(run: Runner, phase: str, cfg: Any) -> Any:
    """Build the loader of a phase by the Runner's method, which a subclass may override."""
    where, seed = f"{phase}_dataloader", run.seed
    settings = DataSettings(seed, run.loader_generator, run.rank, run.world_size, run.device)
    by_rank = run.randomness.is_by_rank
    with _building(_PartOfRun(where, settings)):
        loader = built_by(run, "build_dataloader", cfg, seed=seed, diff_rank_seed=by_rank)
    if isinstance(getattr(loader, "batch_sampler", None), SeekableBatchSampler):
        return loader
    # A subclass made it as it liked: it is like one that was given ready-made.
    return build_dataloader(loader, settings, shuffle=phase == "train", where=where)


def evaluator_of_run(run: Runner, phase: str, cfg: Any) -> Any:
    """Build the evaluator of a phase by the Runner's method, which a subclass may override."""
    with _building(_PartOfRun(f"{phase}_evaluator")):
        return built_by(run, "build_evaluator", cfg)


@contextmanager
def _building(part: _PartOfRun | None) -> Iterator[None]:
    token = _part.set(part)
    try:
        yield
    finally:
        _part.reset(token)
