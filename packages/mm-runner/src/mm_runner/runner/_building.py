"""Loops from their configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

import mm_dist
from mm_runner.data import DataSettings, build_dataloader
from mm_runner.errors import ConfigError
from mm_runner.registry import LOOPS, build_from_cfg

from ._making import PartOfRun, making, part_of_run
from ._overrides import built_by

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from mm_runner.runner import Runner

__all__ = ["build_eval_loop", "build_loader_of_script", "build_train_loop"]

_EVAL_LOOPS = {"val": "ValLoop", "test": "TestLoop"}


def build_train_loop(runner: Runner, train_dataloader: Any, train_cfg: Any) -> Any:
    """Build the training loop and its dataloader.

    Args:
        runner: The run, whose ``build_dataloader`` builds that.
        train_dataloader: A dataloader or its config.
        train_cfg: ``by_epoch`` or ``type``, and the loop's arguments.

    Raises:
        ConfigError: If a config does not fit.
    """
    arguments = _loop_arguments(train_cfg, "train_cfg")
    by_epoch = arguments.pop("by_epoch", None)
    if by_epoch is not None and "type" in arguments:
        raise ConfigError("train_cfg: 'type' and 'by_epoch' were both given; give one of them.")
    if by_epoch not in (None, True, False):
        raise ConfigError(f"train_cfg.by_epoch: True or False is needed, got {by_epoch!r}.")
    kind = "IterBasedTrainLoop" if by_epoch is False else "EpochBasedTrainLoop"
    loader = _build_loader(runner, train_dataloader, "train_dataloader", shuffle=True)
    return build_from_cfg(
        arguments,
        LOOPS,
        {"type": kind, "runner": runner, "dataloader": loader},
        where="train_cfg",
    )


def build_eval_loop(runner: Runner, phase: str, dataloader: Any, cfg: Any, evaluator: Any) -> Any:
    """Build the loop of ``phase``, its dataloader and its evaluator.

    Args:
        runner: The run, whose ``build_dataloader`` and ``build_evaluator`` build these.
        phase: ``"val"`` or ``"test"``.
        dataloader: A dataloader or its config.
        cfg: The loop's arguments.
        evaluator: A metric, an evaluator, or the config of one.

    Raises:
        ConfigError: If a config does not fit.
    """
    loader = _build_loader(runner, dataloader, f"{phase}_dataloader", shuffle=False)
    with making(PartOfRun(f"{phase}_evaluator")):
        built = built_by(runner, "build_evaluator", evaluator)
    return build_from_cfg(
        _loop_arguments(cfg, f"{phase}_cfg"),
        LOOPS,
        {"type": _EVAL_LOOPS[phase], "runner": runner, "dataloader": loader, "evaluator": built},
        where=f"{phase}_cfg",
    )


def build_loader_of_script(cfg: Any, seed: int | None) -> DataLoader[Any]:
    """Build a dataloader: that of a run if one is being built, else one of a script's own.

    Args:
        cfg: A dataloader or its config.
        seed: Of samplers and workers; ``None`` draws one, alike on all processes.

    Raises:
        ConfigError: If a key is missing, unknown or of the wrong type.
    """
    part = part_of_run()
    shuffle, where = False, "dataloader"
    if part is not None and part.settings is not None:
        settings, shuffle, where = part.settings, part.shuffle, part.where
        settings = settings if seed is None else settings._replace(seed=seed)
    else:
        seed = mm_dist.sync_random_seed() if seed is None else seed
        generator = torch.Generator().manual_seed(seed)
        settings = DataSettings(seed, generator, *mm_dist.get_dist_info())
    with making(None):  # a dataset may build a loader of its own
        loader = build_dataloader(cfg, settings, shuffle=shuffle, where=where)
    if part is not None:
        part.made.append(loader)
    return loader


def _build_loader(runner: Runner, cfg: Any, where: str, *, shuffle: bool) -> DataLoader[Any]:
    settings = DataSettings(
        runner.seed, runner.loader_generator, runner.rank, runner.world_size, runner.device
    )
    part = PartOfRun(where, settings, shuffle=shuffle)
    with making(part):
        loader: DataLoader[Any] = built_by(
            runner,
            "build_dataloader",
            cfg,
            seed=runner.seed,
            diff_rank_seed=runner.diff_rank_seed,
        )
    if any(loader is one for one in part.made):
        return loader
    # A subclass made it as it liked: it is like one that was given ready-made.
    return build_dataloader(loader, settings, shuffle=shuffle, where=where)


def _loop_arguments(cfg: Any, where: str) -> dict[str, Any]:
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"{where}: a dict is needed, got {cfg!r}.")
    return dict(cfg)
