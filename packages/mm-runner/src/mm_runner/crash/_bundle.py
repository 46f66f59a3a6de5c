"""The folder that a failed training leaves beside its log."""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

import mm_dist
from mm_runner._out_of_memory import is_out_of_memory
from mm_runner.data import failing_sample
from mm_runner.errors import MMRunnerError
from mm_runner.reporting import recent_lines

from ._batch import describe_batch, last_batch
from ._memory import advise_on_memory, keep_memory
from ._rng import rng_digests
from ._samples import samples_of_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from mm_runner.runner import Runner

__all__ = ["CONFIG_FILE", "CRASH_FOLDER", "keep_crash"]

_T = TypeVar("_T")
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

    Each process that fails writes ``crash/rank<N>.json``, its record of collectives where torch has
    one, and after it ran out of memory what the device's allocator tells; the configuration stands
    beside them. What the user can repair by reading the message is not kept. Failing to write never
    hides ``error``.

    Args:
        runner: The run.
        error: What ended it.
    """
    if isinstance(error, MMRunnerError):
        return
    folder = runner.log_dir / CRASH_FOLDER
    ran_out = is_out_of_memory(error)
    try:
        folder.mkdir(exist_ok=True)
        (folder / CONFIG_FILE).write_text(runner.config_text, encoding="utf-8")
        text = json.dumps(_facts(runner, error), indent=2, default=str)
        (folder / f"rank{runner.rank}.json").write_text(f"{text}\n", encoding="utf-8")
    except Exception as failure:  # noqa: BLE001 - the disk may be what failed first
        _tell(runner, f"What was there could not be kept in {folder}: {failure}")
        return
    _unless_it_fails(lambda: _keep_records(runner, folder), None)
    if ran_out:
        _unless_it_fails(lambda: keep_memory(runner.device, folder, runner.rank), None)
    sample = failing_sample(error)
    where = f" while it read {sample}" if sample else ""
    advice = f"{_unless_it_fails(lambda: advise_on_memory(runner), '')} " if ran_out else ""
    _tell(
        runner,
        f"Training failed in {_place(runner, error)} with {type(error).__name__}{where}. {advice}"
        f"What was there is kept; to go back there: {_command(runner, folder)}",
    )


def _facts(runner: Runner, error: Exception) -> dict[str, Any]:
    batch = last_batch(error.__traceback__)
    is_of_step = batch is not None and not _is_validating(runner, error)
    return {
        "error": {"type": type(error).__name__, "message": str(error)},
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "place": _place(runner, error),
        "iter": runner.iter,
        "epoch": runner.epoch,
        "batch": describe_batch(batch),
        "samples": _unless_it_fails(lambda: samples_of_step(runner.train_loop), None)
        if is_of_step
        else None,
        "sample": failing_sample(error),
        "seed": runner.seed,
        "experiment_name": runner.experiment_name,
        "generators": _unless_it_fails(lambda: rng_digests(runner.device), dict[str, str]()),
        "log": recent_lines(runner.logger),
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
    if _is_validating(runner, error):
        return f"the validation after step {runner.iter}"
    return f"step {runner.iter + 1}"


def _is_validating(runner: Runner, error: Exception) -> bool:
    callers = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    return runner.val_loop is not None and any(one is runner.val_loop for one in callers)


def _keep_records(runner: Runner, folder: Path) -> None:
    """Write what torch's flight recorders know of the collectives, as ``torchfrtrace`` reads it."""
    for backend, record in mm_dist.read_flight_records().items():
        (folder / f"{backend}_trace_rank_{runner.rank}").write_bytes(record)


def _unless_it_fails(ask: Callable[[], _T], otherwise: _T) -> _T:
    """Return what ``ask`` does; a device that failed may answer nothing, and the rest is kept."""
    try:
        return ask()
    except Exception:  # noqa: BLE001 - see above
        return otherwise


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
