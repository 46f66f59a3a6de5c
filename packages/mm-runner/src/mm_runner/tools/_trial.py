"""Runs of a few steps that leave nothing behind."""

from __future__ import annotations

import copy
import gc
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import rng_state, set_rng_state
from mm_runner.errors import ConfigError
from mm_runner.runner import Runner
from mm_runner.runner._checks import without_variables
from mm_runner.runner._environment import fix_cublas_workspace, set_up_process

if TYPE_CHECKING:
    from mm_runner.hooks import Hook

__all__ = [
    "TRAINING_ONLY",
    "EndOfTrialError",
    "check_trains",
    "copied_config",
    "train_with",
    "trial_directory",
]

# Keys without which a run only trains.
TRAINING_ONLY = (
    *("experiment_name", "visualizer", "log_writers"),
    *("val_cfg", "val_dataloader", "val_evaluator"),
    *("test_cfg", "test_dataloader", "test_evaluator"),
)


class EndOfTrialError(Exception):
    """Ends a trial."""


def check_trains(cfg: Mapping[str, Any], what: str) -> None:
    """Raise a :class:`ConfigError` if ``cfg`` does not train, which the tool ``what`` needs."""
    for key in ("train_dataloader", "train_cfg", "optim_wrapper"):
        if cfg.get(key) is None:
            raise ConfigError(
                f"{key}: this key is missing; {what} trains some steps, and needs "
                "train_dataloader, train_cfg and optim_wrapper."
            )


def copied_config(cfg: Mapping[str, Any], what: str, left_out: tuple[str, ...]) -> dict[str, Any]:
    """Return a deep copy of ``cfg`` without some keys; what two entries share stays shared.

    Raises:
        ConfigError: If it cannot be copied.
    """
    try:
        copied = copy.deepcopy(dict(cfg))
    except Exception as error:
        raise ConfigError(
            f"{what}: the configuration is used several times, and cannot be copied: {error}. "
            "Give dicts with 'type' instead of objects."
        ) from error
    kept = {name: value for name, value in copied.items() if name not in left_out}
    return {**without_variables(kept), "crash_bundle": False, "log_level": "WARNING"}


@contextmanager
def trial_directory(
    cfg: Mapping[str, Any], what: str, work_dir: str | Path | None = None
) -> Iterator[tuple[Path, torch.device]]:
    """Set up this process as a run would, and yield a directory for all processes, and the device.

    Random number generators, and the choice of deterministic algorithms, are restored afterwards.

    Args:
        cfg: A full configuration.
        what: Names the tool, in the name of the directory.
        work_dir: The directory; by default a temporary one, which is removed.
    """
    fix_cublas_workspace(cfg.get("randomness"))
    device = set_up_process(cfg.get("launcher") or "auto", cfg.get("env_cfg")).device
    generators, algorithms = rng_state(device), _algorithms()
    directory = Path(work_dir or "").absolute()
    if work_dir is None:
        directory = run_on_main(lambda: Path(tempfile.mkdtemp(prefix=f"mm_runner-{what}-")))
    try:
        yield directory, device
        mm_dist.barrier()  # not where one has failed: the others may wait elsewhere
    finally:
        gc.collect()  # closes the files of the runs
        set_rng_state(generators, device)
        _choose_algorithms(*algorithms)
        if work_dir is None and mm_dist.is_main_process():
            shutil.rmtree(directory, ignore_errors=True)


def train_with(cfg: Mapping[str, Any], hook: Hook) -> Runner:
    """Train until ``hook`` raises :class:`EndOfTrialError`, or to the end, and save nothing.

    All hooks clean up; where it raises, their ``after_train`` and ``after_run`` are not called.
    """
    runner = Runner.from_cfg(cfg)
    runner.register_hook(hook)
    runner.interruption.saves = False
    with suppress(EndOfTrialError):
        runner.train()
    return runner


def _algorithms() -> tuple[bool, bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )


def _choose_algorithms(*chosen: bool) -> None:
    is_deterministic, only_warns, cudnn_is, cudnn_compares = chosen
    torch.use_deterministic_algorithms(is_deterministic, warn_only=only_warns)
    torch.backends.cudnn.deterministic = cudnn_is
    torch.backends.cudnn.benchmark = cudnn_compares
