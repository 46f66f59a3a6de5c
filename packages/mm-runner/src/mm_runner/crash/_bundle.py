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
from mm_runner._error_text import text_of
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
# Rather too much is left out than too little.
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASS", "PW", "CREDENTIAL", "AUTH", "JWT")


def keep_crash(runner: Runner, error: Exception) -> None:
    """Write what is known of a failed training into its log directory, and tell how to replay it.

    Each process that fails writes ``crash/rank<N>.json``, where there are several its record of
    collectives if torch has one, and after it ran out of memory what the device's allocator tells;
    the configuration stands beside them. What the user can repair by reading the message is not
    kept. Nothing that fails here hides ``error``: what cannot be found out is left out.

    Args:
        runner: The run.
        error: What ended it.
    """
    if isinstance(error, MMRunnerError):
        return
    folder = runner.log_dir / CRASH_FOLDER
    try:
        _write(runner, error, folder)
        told = _unless_it_fails(lambda: _told(runner, error, folder), "Training failed.")
    except Exception as failure:  # noqa: BLE001 - the disk may be what failed first
        told = f"What was there could not be kept in {folder}: {text_of(failure)}"
    _unless_it_fails(lambda: _tell(runner, told), None)


def _write(runner: Runner, error: Exception, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / CONFIG_FILE).write_text(runner.logs.config_text, encoding="utf-8")
    text = json.dumps(_facts(runner, error), indent=2, default=_as_text)
    (folder / f"rank{runner.rank}.json").write_text(f"{text}\n", encoding="utf-8")
    _unless_it_fails(lambda: _keep_records(runner, folder), None)
    if is_out_of_memory(error):
        _unless_it_fails(lambda: keep_memory(runner.device, folder, runner.rank), None)


def _told(runner: Runner, error: Exception, folder: Path) -> str:
    """Say what happened, what helps, and what to do."""
    sample = _unless_it_fails(lambda: failing_sample(error), None)
    where = f" while it read {sample}" if sample else ""
    advice = ""
    if is_out_of_memory(error):
        advice = f"{_unless_it_fails(lambda: advise_on_memory(runner), '')} "
    return (
        f"Training failed in {_place(runner, error)} with {type(error).__name__}{where}. {advice}"
        f"What was there is kept; to go back there: {_command(runner, folder)}"
    )


def _facts(runner: Runner, error: Exception) -> dict[str, Any]:
    """Return what is known, each for itself: what cannot be asked any more is ``None``."""
    batch = _unless_it_fails(lambda: last_batch(error.__traceback__), None)
    is_of_step = batch is not None and not _is_validating(runner, error)
    trace = error.__traceback__
    ask: dict[str, Callable[[], Any]] = {
        "traceback": lambda: "".join(traceback.format_exception(type(error), error, trace)),
        "batch": lambda: describe_batch(batch),
        "samples": lambda: samples_of_step(runner.train_loop) if is_of_step else None,
        "sample": lambda: failing_sample(error),
        "log": lambda: recent_lines(runner.logger),
        "folder": lambda: str(Path.cwd()),
        "environment": _environment,
    }
    return {
        "error": {"type": type(error).__name__, "message": text_of(error)},
        "place": _place(runner, error),
        "iter": runner.iter,
        "epoch": runner.epoch,
        "seed": runner.seed,
        "experiment_name": runner.experiment_name,
        "generators": _unless_it_fails(lambda: rng_digests(runner.device), dict[str, str]()),
        "rank": runner.rank,
        "world_size": runner.world_size,
        "launcher": runner.launcher,
        "device": str(runner.device),
        "work_dir": str(runner.work_dir),
        "command": [sys.executable, *sys.orig_argv[1:]],
        "python_path": [entry for entry in sys.path if entry],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {"torch": torch.__version__, **{name: _version(name) for name in _PACKAGES}},
        "cuda": torch.version.cuda,
        **{name: _unless_it_fails(one, None) for name, one in ask.items()},
    }


def _place(runner: Runner, error: Exception) -> str:
    """Say what the training was at when it failed."""
    if _is_validating(runner, error):
        return f"the validation after step {runner.iter}"
    return f"step {runner.iter + 1}"


def _is_validating(runner: Runner, error: Exception) -> bool:
    callers = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    return runner.val_loop is not None and any(one is runner.val_loop for one in callers)


def _as_text(value: Any) -> str:
    return str(_unless_it_fails(lambda: str(value), type(value).__name__))


def _keep_records(runner: Runner, folder: Path) -> None:
    """Write what torch's flight recorders know of the collectives, as ``torchfrtrace`` reads it."""
    if runner.world_size == 1:  # of a group that is gone, at most: torch keeps it for the process
        return
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
        if name.startswith(_VARIABLES) and not any(part in name.upper() for part in _SECRETS)
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
