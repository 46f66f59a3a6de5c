"""Crash bundles: a folder beside the log of a training that failed."""

from __future__ import annotations

import json
import platform
import re
import sys
import traceback
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from typing_extensions import override

from mm_runner.data import failing_sample
from mm_runner.errors import MMRunnerError
from mm_runner.hooks import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

CONFIG_FILE = "config.yaml"

_PACKAGES = ("torch", "mm-runner", "mm-dist", "mm-amp", "mm-compile", "mm-npu", "numpy", "triton")
_MOST_ITEMS, _MOST_LEVELS = 20, 8
_MEMORY_ADVICE = (
    "Less memory is needed by a smaller train_dataloader.batch_size with more "
    "optim_wrapper.accumulative_counts (mm-runner find-batch-size finds the largest that fits), "
    "mixed precision (AmpOptimWrapper), activation_checkpointing, sharding over several devices "
    "(MMFullyShardedDataParallel), and PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
)
# Messages of allocators and libraries for which torch has no exception class.
_FULL = re.compile(
    r"out of memory|alloc(ation)?_failed|can(no|')t allocate memory|bad_alloc|invalid buffer size",
    re.IGNORECASE,
)


class CrashBundleHook(Hook):
    """Write a crash bundle to the log directory when training fails, for ``mm-runner replay``.

    Each process that fails writes ``crash/rank<N>.json``; the configuration lies beside it. An
    error of mm-runner, whose message says what to repair, leaves no bundle. A failure to write
    never hides the error.

    One of the default hooks; ``crash_bundle: false`` in the configuration keeps nothing.
    """

    priority = "LOWEST"

    @override
    def on_exception(self, runner: RunView, exception: Exception) -> None:
        if isinstance(exception, MMRunnerError) or not runner.cfg.get("crash_bundle", True):
            return
        folder = runner.log_dir / "crash"
        try:
            message = _write(runner, exception, folder)
        except Exception as failure:  # noqa: BLE001 - the disk may be what failed first
            message = f"The crash bundle could not be written to {folder}: {failure}"
        runner.console.stop_progress()
        if runner.rank == 0:
            runner.logger.error(message)
        else:  # whose logger is silent
            sys.stderr.write(f"rank {runner.rank}: {message}\n")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error``, or its cause, says that the memory is full."""
    # torch's for all devices (since 2.5), that for CUDA, torch_npu's; Python's.
    names = {kind.__name__ for kind in type(error).__mro__}
    is_said = isinstance(error, (RuntimeError, OSError)) and _FULL.search(str(error))
    if is_said or names & {"OutOfMemoryError", "MemoryError"}:
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def _write(runner: RunView, error: Exception, folder: Path) -> str:
    """Write the bundle, and return what to log."""
    folder.mkdir(exist_ok=True)
    config = runner.log_dir / CONFIG_FILE
    if config.is_file():  # the main process has written it
        (folder / CONFIG_FILE).write_bytes(config.read_bytes())
    facts = _facts(runner, error)
    (folder / f"rank{runner.rank}.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")
    sample = f" while it read {facts['sample']}" if facts["sample"] else ""
    message = f"Training failed in {facts['place']} with {type(error).__name__}{sample}."
    if is_out_of_memory(error):
        message = f"{message} {_MEMORY_ADVICE}"
    launch = ""
    if runner.world_size > 1:
        launch = f", under the same launcher with {runner.world_size} processes"
    return f"{message} To replay it: mm-runner replay {folder}{launch}"


def _facts(runner: RunView, error: Exception) -> dict[str, Any]:
    trace = error.__traceback__
    installed = {one.metadata["Name"]: one.version for one in distributions()}
    batch, is_validating = None, False
    for frame, _ in traceback.walk_tb(trace):
        if batch is None:  # the argument of the failing step
            batch = frame.f_locals.get("data_batch")
        if runner.val_loop is not None and frame.f_locals.get("self") is runner.val_loop:
            is_validating = True
    step = f"step {runner.iter + 1}"
    return {
        "error": {"type": type(error).__name__, "message": str(error)},
        "traceback": "".join(traceback.format_exception(type(error), error, trace)),
        "place": f"the validation after step {runner.iter}" if is_validating else step,
        "iter": runner.iter,
        "epoch": runner.epoch,
        "seed": runner.seed,
        "batch": _describe(batch),
        "sample": failing_sample(error),
        "world_size": runner.world_size,
        "device": str(runner.device),
        "work_dir": str(runner.work_dir),
        "command": [sys.executable, *sys.orig_argv[1:]],
        "python_path": [entry for entry in sys.path if entry],
        "platform": f"Python {platform.python_version()}, {platform.platform()}",
        "versions": {name: installed[name] for name in _PACKAGES if name in installed},
    }


def _describe(value: Any, level: int = 0) -> Any:
    """Return the structure of a batch with shapes and dtypes, without its values."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"shape": list(value.shape), "dtype": dtype, "device": str(value.device)}
    if level < _MOST_LEVELS and isinstance(value, Mapping):
        return {str(key): _describe(item, level + 1) for key, item in value.items()}
    if level < _MOST_LEVELS and isinstance(value, (list, tuple)):
        return [_describe(item, level + 1) for item in value[:_MOST_ITEMS]]
    return type(value).__name__
