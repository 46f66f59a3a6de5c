"""The state of a run, into a checkpoint and back."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import (
    FORMAT_VERSION,
    mark_latest,
    plain,
    rng_state,
    save_checkpoint_file,
    set_rng_state,
)
from mm_runner.model import unwrap_model
from mm_runner.optim import named_schedulers

from ._sharded_state import as_sharded, read_optimizer, write_optimizer

if TYPE_CHECKING:
    from pathlib import Path

    from mm_runner.runner import Runner

__all__ = ["restore_training", "write_snapshot"]

_PACKAGES = ("mm-runner", "mm-dist", "mm-amp", "mm-compile", "mm-npu")


def write_snapshot(
    runner: Runner,
    path: Path,
    *,
    meta: dict[str, Any],
    save_optimizer: bool,
    save_param_scheduler: bool,
    mark_as_latest: bool,
) -> None:
    """Save the run. Every process must call this: each contributes its random numbers' state.

    Args:
        runner: The run.
        path: The file.
        meta: At least ``epoch`` and ``iter``: how many of each are done.
        save_optimizer: Include the optimizer and the loss scaler.
        save_param_scheduler: Include the schedules' positions.
        mark_as_latest: Let ``last_checkpoint`` name the file.

    Raises:
        CheckpointError: On all processes, if something cannot be saved or written.
    """
    rng = mm_dist.all_gather_object(plain(rng_state(runner.device)))
    checkpoint = _content(runner, meta, rng)
    if save_optimizer and runner.optim_wrapper is not None:
        checkpoint["optimizer"] = _optimizer_state(runner)
    if save_param_scheduler and runner.param_schedulers:
        checkpoint["param_schedulers"] = _scheduler_states(runner)
    runner.call_hook("before_save_checkpoint", checkpoint=checkpoint)

    def write() -> None:
        # Copied to the CPU here, so that the other processes of a machine do not hold copies too.
        save_checkpoint_file(plain(checkpoint), path)
        if mark_as_latest:
            mark_latest(path, runner.work_dir)

    run_on_main(write)


def _content(runner: Runner, meta: dict[str, Any], rng: list[Any]) -> dict[str, Any]:
    return {
        "meta": {
            "format_version": FORMAT_VERSION,
            "seed": runner.seed,
            "world_size": runner.world_size,
            "experiment_name": runner.experiment_name,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "cfg": runner.config_text,
            "versions": _versions(),
            **meta,
        },
        "state_dict": _weights(runner.model),
        "rng": rng,
        # The position of the samplers: this version saves between epochs only.
        "data": {"epoch": meta["epoch"], "batch": 0},
    }


def restore_training(runner: Runner, checkpoint: dict[str, Any]) -> None:
    """Set everything but the model's weights to where ``checkpoint`` left it."""
    meta = checkpoint.get("meta", {})
    runner.train_loop.epoch = checkpoint.get("data", meta).get("epoch", 0)
    runner.train_loop.iter = meta.get("iter", 0)
    if "optimizer" in checkpoint:
        _restore_optimizer(runner, checkpoint["optimizer"])
    else:
        runner.logger.warning("The checkpoint has no optimizer state: the optimizer starts anew.")
    _restore_schedulers(runner, checkpoint.get("param_schedulers", []))
    _restore_rng(runner, checkpoint)


def _scheduler_states(runner: Runner) -> list[Any] | dict[str, list[Any]]:
    states = {
        name: [one.state_dict() for one in schedulers]
        for name, schedulers in named_schedulers(runner.param_schedulers).items()
    }
    return states if isinstance(runner.param_schedulers, dict) else states[""]


def _restore_schedulers(runner: Runner, saved: list[Any] | dict[str, list[Any]]) -> None:
    by_name = saved if isinstance(saved, dict) else {"": saved}
    for name, schedulers in named_schedulers(runner.param_schedulers).items():
        states = by_name.get(name, [])
        if len(states) != len(schedulers):
            runner.logger.warning(
                f"The checkpoint has {len(states)} parameter schedulers"
                f"{f' of {name!r}' if name else ''}, this run {len(schedulers)}; those without a "
                "state start anew."
            )
        for scheduler, state in zip(schedulers, states, strict=False):
            scheduler.load_state_dict(state)


def _restore_rng(runner: Runner, checkpoint: dict[str, Any]) -> None:
    states = checkpoint.get("rng", [])
    if len(states) == runner.world_size:
        set_rng_state(states[runner.rank], runner.device)
        return
    runner.logger.warning(
        f"The checkpoint was written by {len(states) or 'an unknown number of'} processes, this "
        f"run has {runner.world_size}: the random numbers go on from the seed instead."
    )


def _optimizer_state(runner: Runner) -> dict[str, Any]:
    sharded = as_sharded(runner.model)
    if sharded is not None:
        return read_optimizer(sharded, runner.optim_wrapper)
    state: dict[str, Any] = runner.optim_wrapper.state_dict()
    return state


def _restore_optimizer(runner: Runner, saved: dict[str, Any]) -> None:
    sharded = as_sharded(runner.model)
    if sharded is not None:
        write_optimizer(sharded, runner.optim_wrapper, saved)
    else:
        runner.optim_wrapper.load_state_dict(saved)


def _weights(model: nn.Module) -> dict[str, Any]:
    """Return the weights by the names that the model itself gives them."""
    sharded = as_sharded(model)
    state_dict = unwrap_model(model).state_dict() if sharded is None else sharded.full_state_dict()
    # Not "module.": what is left of it is the model's own attribute.
    return {name.replace("_orig_mod.", ""): value for name, value in state_dict.items()}


def _versions() -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # run from a source tree
            versions[package] = "unknown"
    return versions
