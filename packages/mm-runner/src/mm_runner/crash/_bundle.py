"""The folder that a failed training leaves beside its log."""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mm_runner.data import failing_sample
from mm_runner.errors import MMRunnerError

from ._batch import describe_batch, last_batch

if TYPE_CHECKING:
    from mm_runner.runner import Runner

__all__ = ["CONFIG_FILE", "CRASH_FOLDER", "keep_crash"]

CRASH_FOLDER, CONFIG_FILE = "crash", "config.yaml"

_PACKAGES = ("mm-runner", "mm-dist", "mm-amp", "mm-compile", "mm-npu", "numpy", "triton")
# Of the environment, only what changes how torch and its processes behave.
_VARIABLES = (
    *("CUDA_", "CUBLAS_", "TORCH", "NCCL_", "GLOO_", "OMP_", "MKL_", "PYTORCH_", "ASCEND_"),
    *("HCCL_", "MM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_COMM_WORLD"),
)
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def keep_crash(runner: Runner, error: Exception) -> None:
    """Write what is known of a failed training into its log directory, and tell how to replay it.

    Each process that fails writes ``crash/rank<N>.json``; the configuration stands beside it. What
    the user can repair by reading the message is not kept. Failing to write never hides ``error``.

    Args:
        runner: The run.
        error: What ended it.
    """
    if isinstance(error, MMRunnerError):
        return
    folder = runner.log_dir / CRASH_FOLDER
    try:
        folder.mkdir(exist_ok=True)
        (folder / CONFIG_FILE).write_text(runner.config_text, encoding="utf-8")
        text = json.dumps(_facts(runner, error), indent=2, default=str)
        (folder / f"rank{runner.rank}.json").write_text(f"{text}\n", encoding="utf-8")
    except Exception as failure:  # noqa: BLE001 - the disk may be what failed first
        _tell(runner, f"What was there could not be kept in {folder}: {failure}")
        return
    sample = failing_sample(error)
    where = f" while it read {sample}" if sample else ""
    _tell(
        runner,
        f"Training failed in {_place(runner, error)} with {type(error).__name__}{where}. What was "
        f"there is kept; to go back there: {_command(runner, folder)}",
    )


def _facts(runner: Runner, error: Exception) -> dict[str, Any]:
    return {
        "error": {"type": type(error).__name__, "message": str(error)},
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "place": _place(runner, error),
        "iter": runner.iter,
        "epoch": runner.epoch,
        "batch": describe_batch(last_batch(error.__traceback__)),
        "sample": failing_sample(error),
        "seed": runner.seed,
        "rank": runner.rank,
        "world_size": runner.world_size,
        "launcher": runner.launcher,
        "device": str(runner.device),
        "work_dir": str(runner.work_dir),
        "command": [sys.executable, *sys.orig_argv[1:]],
        "folder": str(Path.cwd()),
        "python_path": [entry for entry in sys.path if entry],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {"torch": torch.__version__, **{name: _version(name) for name in _PACKAGES}},
        "cuda": torch.version.cuda,
        "environment": _environment(),
    }


def _place(runner: Runner, error: Exception) -> str:
    """Say what the training was at when it failed."""
    callers = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    if runner.val_loop is not None and any(one is runner.val_loop for one in callers):
        return f"the validation after step {runner.iter}"
    return f"step {runner.iter + 1}"


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLES) and not any(part in name for part in _SECRETS)
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _command(runner: Runner, folder: Path) -> str:
    if runner.world_size == 1:
        return f"mm-runner replay {folder}"
    if runner.launcher == "pytorch":
        return f"torchrun --nproc_per_node={runner.world_size} -m mm_runner replay {folder}"
    return f"mm-runner replay {folder}, under the same launcher with {runner.world_size} processes"


def _tell(runner: Runner, text: str) -> None:
    runner.console.stop_progress()
    if runner.rank == 0:
        runner.logger.error(text)
    else:  # whose logger is silent
        sys.stderr.write(f"rank {runner.rank}: {text}\n")
