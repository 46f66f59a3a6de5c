"""Saving a run to a checkpoint."""

from __future__ import annotations

import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import FORMAT_VERSION, mark_latest, plain, save_checkpoint_file

from ._sharded import as_sharded
from ._state import samples_per_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mm_runner.checkpoint import BackgroundWriter

    from ._runner import Runner

__all__ = ["write_snapshot"]


def write_snapshot(
    runner: Runner,
    path: Path,
    *,
    save_optimizer: bool = True,
    save_param_scheduler: bool = True,
    meta: Mapping[str, Any] | None = None,
    mark_as_latest: bool = True,
    writer: BackgroundWriter | None = None,
    then: Callable[[], None] | None = None,
    whole: bool = False,
) -> None:
    """Save the run. Every process must call this: each contributes its state.

    Args:
        runner: The run.
        path: The file.
        save_optimizer: Include the optimizer and the loss scaler.
        save_param_scheduler: Include the schedules.
        meta: Added to the header of the checkpoint.
        mark_as_latest: Let ``last_checkpoint`` name the file, so that resuming finds it.
        writer: Writes a copy while training continues; without one the file is whole on return.
        then: Called on the main process once the file is whole and named.
        whole: Gather the tensors of a sharded model into the file; by default each process writes
            its shards to a folder beside it.

    Raises:
        CheckpointError: On all processes, if something cannot be saved or written.
    """
    is_sharded = not whole and as_sharded(runner.model) is not None
    saves = {"optimizer": save_optimizer, "param_schedulers": save_param_scheduler}
    leave_out = [name for name, is_saved in saves.items() if not is_saved]
    if runner.optim_wrapper is None:
        leave_out.append("optimizer")
    state = runner.state.snapshot(leave_out=leave_out, is_sharded=is_sharded)
    checkpoint = {"meta": {**_header(runner, state), **(meta or {})}, **state}
    runner.call_hook("before_save_checkpoint", checkpoint=checkpoint)

    def write(content: dict[str, Any]) -> None:
        save_checkpoint_file(content, path)
        if mark_as_latest:
            mark_latest(path, runner.work_dir)
        if then is not None:
            then()

    if is_sharded:
        runner.shard_writer.write(checkpoint, path, write, writer)
    elif writer is None:  # copied to the CPU by the main process alone
        run_on_main(lambda: write(plain(checkpoint)))
    else:
        run_on_main(lambda: writer.submit(checkpoint, write))


def _header(runner: Runner, state: Mapping[str, Any]) -> dict[str, Any]:
    versions = {"torch": str(torch.__version__)}
    for package in ("mm-runner", "mm-dist", "mm-amp", "mm-compile", "mm-npu"):
        with suppress(PackageNotFoundError):  # run from a source tree
            versions[package] = version(package)
    return {
        "epoch": state["data"][0]["epoch"],
        "iter": state["data"][0]["iter"],
        "format_version": FORMAT_VERSION,
        "seed": runner.seed,
        "world_size": runner.world_size,
        "samples_per_step": samples_per_step(runner),
        "experiment_name": runner.experiment_name,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cfg": runner.logs.config_text,
        "versions": versions,
    }
