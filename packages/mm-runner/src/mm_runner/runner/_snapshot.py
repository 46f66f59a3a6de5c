"""The state of a run, into a checkpoint."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import (
    FORMAT_VERSION,
    mark_latest,
    plain,
    renamed,
    save_checkpoint_file,
)
from mm_runner.model import ZEROED_GRADIENTS, unwrap_model, zeroed_gradients
from mm_runner.optim import named_schedulers

from ._comm_hook_state import COMM_HOOKS, gather_comm_hooks
from ._hook_states import hook_states
from ._other_processes import batch_of_run
from ._rank_state import gather_rank_buffers, gather_rank_states
from ._sharded_state import as_sharded, read_optimizer, with_versions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mm_runner.checkpoint import BackgroundWriter
    from mm_runner.runner import Runner

    from ._parts import PartsWriting

__all__ = ["write_snapshot"]

_PACKAGES = ("mm-runner", "mm-dist", "mm-amp", "mm-compile", "mm-npu")


def write_snapshot(
    runner: Runner,
    path: Path,
    *,
    meta: dict[str, Any],
    save_optimizer: bool,
    save_param_scheduler: bool,
    mark_as_latest: bool,
    writer: BackgroundWriter | None = None,
    then: Callable[[], None] | None = None,
    parts: PartsWriting | None = None,
) -> None:
    """Save the run. Every process must call this: each contributes a state of its own.

    Args:
        runner: The run.
        path: The file.
        meta: Added to what the file says of itself; ``epoch`` and ``iter``, how many of each are
            done, are the loop's otherwise.
        save_optimizer: Include the optimizer and the loss scaler.
        save_param_scheduler: Include the schedules' positions.
        mark_as_latest: Let ``last_checkpoint`` name the file.
        writer: Writes a copy while training goes on; without one the file is whole on return.
        then: Called on the main process once the file is whole and named.
        parts: Lets each process write its part of a sharded model; without it the main process
            writes the whole.

    Raises:
        CheckpointError: On all processes, if something cannot be saved or written.
    """
    parts = parts if as_sharded(runner.model) is not None else None
    checkpoint = _content(runner, meta, gather_rank_states(runner), is_whole=parts is None)
    buffers = gather_rank_buffers(runner)
    if buffers:
        checkpoint["rank_buffers"] = buffers
    comm_hooks = gather_comm_hooks(runner)
    if comm_hooks:
        checkpoint[COMM_HOOKS] = comm_hooks
    hooks = hook_states(runner)
    if hooks:
        checkpoint["hooks"] = hooks
    if save_optimizer and runner.optim_wrapper is not None:
        checkpoint["optimizer"] = _optimizer_state(runner, is_whole=parts is None)
        checkpoint.update(_gradients(runner))
    if save_param_scheduler and runner.param_schedulers:
        checkpoint["param_schedulers"] = _scheduler_states(runner)
    runner.call_hook("before_save_checkpoint", checkpoint=checkpoint)

    def finish() -> None:
        if mark_as_latest:
            mark_latest(path, runner.work_dir)
        if then is not None:
            then()

    if parts is not None:
        parts.write(runner, checkpoint, path, finish, writer)
    else:
        run_on_main(lambda: _write_whole(checkpoint, path, finish, writer))


def _write_whole(
    checkpoint: dict[str, Any],
    path: Path,
    finish: Callable[[], None],
    writer: BackgroundWriter | None,
) -> None:
    def write(content: dict[str, Any]) -> None:
        save_checkpoint_file(content, path)
        finish()

    # Copied to the CPU here, so that the other processes of a machine do not hold copies too.
    if writer is None:
        write(plain(checkpoint))
    else:
        writer.submit(checkpoint, write)


def _content(
    runner: Runner, meta: dict[str, Any], ranks: list[dict[str, Any]], *, is_whole: bool
) -> dict[str, Any]:
    loops = [state["loop"] for state in ranks]
    common = {name: value for name, value in loops[0]["data"].items() if name != "state"}
    return {
        "meta": {
            "epoch": loops[0]["epoch"],
            "iter": loops[0]["iter"],
            "format_version": FORMAT_VERSION,
            "seed": runner.seed,
            "world_size": runner.world_size,
            "batch": batch_of_run(runner),
            "experiment_name": runner.experiment_name,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "cfg": runner.config_text,
            "versions": _versions(),
            **meta,
        },
        "state_dict": _weights(runner.model, is_whole=is_whole),
        "rng": [loop["rng"] for loop in loops],
        "data": {
            **common,
            "iter": loops[0]["iter"],
            "is_validated": loops[0].get("is_validated", False),
            "ranks": [{"state": loop["data"]["state"], "pass": loop["pass"]} for loop in loops],
        },
        "message_hub": [state["scalars"] for state in ranks],
    }


def _scheduler_states(runner: Runner) -> list[Any] | dict[str, list[Any]]:
    states = {
        name: [one.state_dict() for one in schedulers]
        for name, schedulers in named_schedulers(runner.param_schedulers).items()
    }
    return states if isinstance(runner.param_schedulers, dict) else states[""]


def _optimizer_state(runner: Runner, *, is_whole: bool) -> dict[str, Any]:
    sharded = as_sharded(runner.model)
    if sharded is not None:
        return read_optimizer(sharded, runner.optim_wrapper, is_whole=is_whole)
    state: dict[str, Any] = runner.optim_wrapper.state_dict()
    return state


def _gradients(runner: Runner) -> dict[str, dict[str, bool]]:
    zeroed = zeroed_gradients(runner.model)
    return {ZEROED_GRADIENTS: zeroed} if zeroed else {}


def _weights(model: nn.Module, *, is_whole: bool) -> dict[str, Any]:
    """Return the weights by the names that the model itself gives them."""
    sharded = as_sharded(model)
    if sharded is None:
        state_dict = unwrap_model(model).state_dict()
    else:
        state_dict = sharded.full_state_dict() if is_whole else sharded.sharded_state_dict()
        state_dict = with_versions(state_dict, sharded.module)
    # Not "module.": what is left of it is the model's own attribute.
    return renamed(state_dict, lambda name: name.replace("_orig_mod.", ""))


def _versions() -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # run from a source tree
            versions[package] = "unknown"
    return versions
