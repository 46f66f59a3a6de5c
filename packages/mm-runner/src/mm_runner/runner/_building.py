"""Loops from their configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mm_runner.checkpoint import rng_state, set_rng_state
from mm_runner.data import DataSettings, build_dataloader
from mm_runner.errors import ConfigError
from mm_runner.evaluator import build_evaluator
from mm_runner.registry import LOOPS, build_from_cfg

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from mm_runner.runner import Runner

__all__ = ["build_eval_loop", "build_train_loop"]

_EVAL_LOOPS = {"val": "ValLoop", "test": "TestLoop"}


def build_train_loop(runner: Runner, train_dataloader: Any, train_cfg: Any) -> Any:
    """Build the training loop and its dataloader.

    Args:
        runner: The run.
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


def build_eval_loop(runner: Runner, phase: str, **configs: Any) -> Any:
    """Build the loop of ``phase``, ``"val"`` or ``"test"``, its dataloader and its evaluator.

    Random numbers that are drawn in it are not taken from those of the run.

    Args:
        runner: The run.
        phase: Which.
        **configs: ``<phase>_dataloader``, ``<phase>_cfg`` and ``<phase>_evaluator``.

    Raises:
        ConfigError: If a config does not fit.
    """
    # A script may ask for the loop before it trains, which then is to go as it does without.
    state = rng_state(runner.device)
    try:
        return _build_eval_loop(runner, phase, **configs)
    finally:
        set_rng_state(state, runner.device)


def _build_eval_loop(runner: Runner, phase: str, **configs: Any) -> Any:
    where = f"{phase}_dataloader"
    loader = _build_loader(runner, configs[where], where, shuffle=False)
    where = f"{phase}_evaluator"
    evaluator = build_evaluator(configs[where], where=where)
    return build_from_cfg(
        _loop_arguments(configs[f"{phase}_cfg"], f"{phase}_cfg"),
        LOOPS,
        {
            "type": _EVAL_LOOPS[phase],
            "runner": runner,
            "dataloader": loader,
            "evaluator": evaluator,
        },
        where=f"{phase}_cfg",
    )


def _build_loader(runner: Runner, cfg: Any, where: str, *, shuffle: bool) -> DataLoader[Any]:
    settings = DataSettings(
        runner.seed, runner.loader_generator, runner.rank, runner.world_size, runner.device
    )
    return build_dataloader(cfg, settings, shuffle=shuffle, where=where)


def _loop_arguments(cfg: Any, where: str) -> dict[str, Any]:
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"{where}: a dict is needed, got {cfg!r}.")
    return dict(cfg)
