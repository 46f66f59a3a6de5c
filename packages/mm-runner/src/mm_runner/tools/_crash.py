"""The folder that a failed training leaves beside its log."""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from mm_runner._error_text import text_of
from mm_runner._torch_private import dump_memory_history
from mm_runner.checkpoint import rng_state
from mm_runner.data import failing_sample
from mm_runner.errors import MMRunnerError
from mm_runner.hooks import Hook
from mm_runner.optim import computes_in_half, named_wrappers
from mm_runner.reporting import recent_lines

from ._fingerprint import fingerprint
from ._out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    from types import TracebackType

    from mm_runner.run_view import RunView

__all__ = ["CONFIG_FILE", "CrashBundleHook"]

CONFIG_FILE = "config.yaml"

_PACKAGES = ("torch", "mm-runner", "mm-dist", "mm-amp", "mm-compile", "mm-npu", "numpy", "triton")
# Of the environment, only what changes how torch and its processes behave.
_VARIABLES = (
    *("CUDA_", "CUBLAS_", "TORCH", "NCCL_", "GLOO_", "OMP_", "MKL_", "PYTORCH_", "ASCEND_"),
    *("HCCL_", "MM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_COMM_WORLD"),
)
# Rather too much is left out than too little.
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASS", "PW", "CREDENTIAL", "AUTH", "JWT")
_MOST_ITEMS, _MOST_LEVELS = 20, 8


class CrashBundleHook(Hook):
    """Write a crash bundle to the log directory when training fails, for ``mm-runner replay``.

    Each process that fails writes ``crash/rank<N>.json``, where there are several its record of
    collectives if torch has one, and after it ran out of memory the summary of the device's
    allocator; the configuration lies beside them. An error of mm-runner, whose message says what to
    repair, leaves no bundle. A failure here never hides the error.

    One of the default hooks; ``crash_bundle: false`` in the configuration keeps nothing.
    """

    priority = "LOWEST"

    @override
    def on_exception(self, runner: RunView, exception: Exception) -> None:
        if isinstance(exception, MMRunnerError) or not runner.cfg.get("crash_bundle", True):
            return
        folder = runner.log_dir / "crash"
        try:
            _write(runner, exception, folder)
            message = _message(runner, exception, folder)
        except Exception as failure:  # noqa: BLE001 - the disk may be what failed first
            message = f"The crash bundle could not be written to {folder}: {text_of(failure)}"
        runner.console.stop_progress()
        if runner.rank == 0:
            runner.logger.error(message)
        else:  # whose logger is silent
            sys.stderr.write(f"rank {runner.rank}: {message}\n")


def _write(runner: RunView, error: Exception, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    config = runner.log_dir / CONFIG_FILE
    if config.is_file():  # the main process has written it
        (folder / CONFIG_FILE).write_bytes(config.read_bytes())
    text = json.dumps(_facts(runner, error), indent=2, default=lambda value: type(value).__name__)
    (folder / f"rank{runner.rank}.json").write_text(f"{text}\n", encoding="utf-8")
    if is_out_of_memory(error):
        _attempt(lambda: _write_memory(runner.device, folder, runner.rank))


def _facts(runner: RunView, error: Exception) -> dict[str, Any]:
    trace = error.__traceback__
    ask: dict[str, Callable[[], Any]] = {
        "error": lambda: {"type": type(error).__name__, "message": text_of(error)},
        "traceback": lambda: "".join(traceback.format_exception(type(error), error, trace)),
        "place": lambda: _place(runner, error),
        "iter": lambda: runner.iter,
        "epoch": lambda: runner.epoch,
        "seed": lambda: runner.seed,
        "experiment_name": lambda: runner.experiment_name,
        "batch": lambda: _describe(_batch_of_step(trace)),
        "sample": lambda: failing_sample(error),
        "generators": lambda: {
            name: fingerprint(state) for name, state in rng_state(runner.device).items()
        },
        "log": lambda: recent_lines(runner.logger),
        "rank": lambda: runner.rank,
        "world_size": lambda: runner.world_size,
        "launcher": lambda: runner.dist_info.launcher,
        "device": lambda: str(runner.device),
        "work_dir": lambda: str(runner.work_dir),
        "folder": lambda: str(Path.cwd()),
        "command": lambda: [sys.executable, *sys.orig_argv[1:]],
        "python_path": lambda: [entry for entry in sys.path if entry],
        "python": platform.python_version,
        "platform": platform.platform,
        "versions": _versions,
        "cuda": lambda: torch.version.cuda,
        "environment": _environment,
    }
    return {name: _attempt(one) for name, one in ask.items()}


def _attempt(ask: Callable[[], Any]) -> Any:
    """Return the answer, or ``None``: a device that has failed may answer nothing."""
    try:
        return ask()
    except Exception:  # noqa: BLE001 - see above
        return None


def _message(runner: RunView, error: Exception, folder: Path) -> str:
    sample = _attempt(lambda: failing_sample(error))
    reading = f" while it read {sample}" if sample else ""
    advice = ""
    if is_out_of_memory(error):
        advice = f"To need less memory: {'; '.join(_memory_advice(runner))}. "
    return (
        f"Training failed in {_place(runner, error)} with {type(error).__name__}{reading}. "
        f"{advice}To replay it: {_command(runner, folder)}"
    )


def _place(runner: RunView, error: Exception) -> str:
    """Name the step, or the validation, that failed."""
    callers = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    if runner.val_loop is not None and any(one is runner.val_loop for one in callers):
        return f"the validation after step {runner.iter}"
    return f"step {runner.iter + 1}"


def _command(runner: RunView, folder: Path) -> str:
    if runner.world_size == 1:
        return f"mm-runner replay {folder}"
    if runner.dist_info.launcher == "pytorch":
        return f"torchrun --nproc_per_node={runner.world_size} -m mm_runner replay {folder}"
    return f"mm-runner replay {folder}, under the same launcher with {runner.world_size} processes"


def _batch_of_step(trace: TracebackType | None) -> Any:
    """Return the argument ``data_batch`` of the failing step, ``None`` outside of steps."""
    for frame, _ in traceback.walk_tb(trace):
        code = frame.f_code
        if "data_batch" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            return frame.f_locals.get("data_batch")
    return None


def _describe(value: Any, level: int = 0) -> Any:
    """Return shapes and dtypes of ``value`` in primitives, and no values."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"shape": list(value.shape), "dtype": dtype, "device": str(value.device)}
    if level == _MOST_LEVELS or not isinstance(value, (Mapping, list, tuple)):
        shape = getattr(value, "shape", None)
        return type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
    if isinstance(value, Mapping):
        return {str(key): _describe(item, level + 1) for key, item in value.items()}
    items = [_describe(item, level + 1) for item in value[:_MOST_ITEMS]]
    left = len(value) - len(items)
    return [*items, f"... {left} more"] if left else items


def _versions() -> dict[str, str]:
    installed = {one.metadata["Name"]: one.version for one in distributions()}
    return {name: installed[name] for name in _PACKAGES if name in installed}


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLES) and not any(part in name.upper() for part in _SECRETS)
    }


def _write_memory(device: torch.device, folder: Path, rank: int) -> None:
    """Write the allocator's summary, and the history of allocations if that was recorded."""
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "memory_summary"):
        text = module.memory_summary(device)
        (folder / f"memory_rank{rank}.txt").write_text(f"{text}\n", encoding="utf-8")
    memory: Any = getattr(module, "memory", None)
    dump_memory_history(memory, folder / f"memory_rank{rank}.pickle")


def _memory_advice(runner: RunView) -> Iterator[str]:
    """Yield what would need less memory, of what the run does not do yet."""
    size = getattr(getattr(runner.train_loop, "dataloader", None), "batch_size", None)
    wrappers = list(named_wrappers(runner.optim_wrapper).values())
    if isinstance(size, int) and size > 1:
        counts = getattr(wrappers[0], "accumulative_counts", 1) if wrappers else 1
        smaller = size // 2
        yield (
            f"train_dataloader.batch_size={smaller} with optim_wrapper.accumulative_counts="
            f"{counts * (size // smaller)}, which keeps the samples per optimizer step "
            "(mm-runner find-batch-size finds the largest that fits)"
        )
    if not any(map(computes_in_half, wrappers)):
        yield "mixed precision, optim_wrapper.type='AmpOptimWrapper'"
    if not runner.cfg.get("activation_checkpointing"):
        yield "activation_checkpointing, which recomputes activations in backward"
    if runner.world_size > 1 and "FullySharded" not in type(runner.model).__name__:
        yield "model_wrapper_cfg=dict(type='MMFullyShardedDataParallel'), which shards the model"
    if runner.device.type == "cuda" and "expandable_segments" not in str(_environment()):
        yield (
            "the environment variable PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, where much "
            "is reserved but not allocated"
        )
