"""Loops, loaders and evaluators of a run, from their configs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import mm_dist
from mm_runner import evaluator as evaluators
from mm_runner.data import DataSettings, build_dataloader
from mm_runner.errors import ConfigError
from mm_runner.registry import LOOPS, build_from_cfg
from mm_runner.validation import check_train_loop

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from ._runner import Runner

__all__ = [
    "build_eval_loop",
    "build_evaluator",
    "build_loader",
    "build_train_loop",
    "built_by",
]


@dataclass
class _PartOfRun:
    """A part that a ``build_*`` method builds for the run, whose arguments do not say so.

    MMEngine's ``build_dataloader`` and ``build_evaluator`` take a config and little else, and a
    subclass that overrides one calls the Runner's with just that.

    Args:
        where: Path of its config.
        settings: What a loader needs to know of the run.
        shuffle: What the default sampler of a loader does.
        made: Filled with what the Runner's own method returns.
    """

    where: str
    settings: DataSettings | None = None
    shuffle: bool = False
    made: list[Any] = field(default_factory=list)


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


def build_train_loop(runner: Runner, train_dataloader: Any, train_cfg: Any) -> Any:
    """Build the training loop and its dataloader.

    Raises:
        ConfigError: If a config does not fit.
    """
    check_train_loop(train_cfg, "train_cfg")
    arguments = dict(train_cfg)
    by_epoch = arguments.pop("by_epoch", None)
    kind = "IterBasedTrainLoop" if by_epoch is False else "EpochBasedTrainLoop"
    loader = _loader_of_run(runner, train_dataloader, "train_dataloader", shuffle=True)
    return build_from_cfg(
        arguments,
        LOOPS,
        {"type": kind, "runner": runner, "dataloader": loader},
        where="train_cfg",
    )


def build_eval_loop(runner: Runner, phase: str, dataloader: Any, cfg: Any, evaluator: Any) -> Any:
    """Build the loop of ``phase``, its dataloader and its evaluator.

    Raises:
        ConfigError: If a config does not fit.
    """
    loader = _loader_of_run(runner, dataloader, f"{phase}_dataloader", shuffle=False)
    with _making(_PartOfRun(f"{phase}_evaluator")):
        built = built_by(runner, "build_evaluator", evaluator)
    return build_from_cfg(
        cfg,
        LOOPS,
        {
            "type": f"{phase.title()}Loop",
            "runner": runner,
            "dataloader": loader,
            "evaluator": built,
        },
        where=f"{phase}_cfg",
    )


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
    part = _part.get()
    if part is not None and part.settings is not None:
        settings = part.settings if seed is None else part.settings._replace(seed=seed)
    else:
        seed = mm_dist.sync_random_seed() if seed is None else seed
        generator = torch.Generator().manual_seed(seed)
        settings = DataSettings(seed, generator, *mm_dist.get_dist_info())
        part = _PartOfRun("dataloader")
    with _making(None):  # a dataset may build a loader of its own
        loader = build_dataloader(dataloader, settings, shuffle=part.shuffle, where=part.where)
    part.made.append(loader)
    return loader


def build_evaluator(evaluator: Any) -> Any:
    """Build an evaluator: from a metric, its config, a list of these, or ``dict(metrics=...)``.

    Raises:
        ComponentNotFoundError: If a ``type`` names nothing.
        ConfigError: If it is nothing of these, or arguments do not fit.
    """
    part = _part.get()
    where = "evaluator" if part is None else part.where
    return evaluators.build_evaluator(evaluator, where=where)


@contextmanager
def _making(part: _PartOfRun | None) -> Iterator[None]:
    token = _part.set(part)
    try:
        yield
    finally:
        _part.reset(token)


def _loader_of_run(runner: Runner, cfg: Any, where: str, *, shuffle: bool) -> DataLoader[Any]:
    settings = DataSettings(
        runner.seed, runner.loader_generator, runner.rank, runner.world_size, runner.device
    )
    part = _PartOfRun(where, settings, shuffle)
    with _making(part):
        loader: DataLoader[Any] = built_by(
            runner,
            "build_dataloader",
            cfg,
            seed=runner.seed,
            diff_rank_seed=runner.randomness.is_by_rank,
        )
    if any(loader is one for one in part.made):
        return loader
    # A subclass made it as it liked: it is like one that was given ready-made.
    return build_dataloader(loader, settings, shuffle=shuffle, where=where)
