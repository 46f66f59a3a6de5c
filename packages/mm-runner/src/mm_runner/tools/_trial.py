"""Trial runs: short trainings of which nothing is kept."""

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
from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop
from mm_runner.registry import HOOKS, LOOPS
from mm_runner.runner import Runner
from mm_runner.runner._checks import HOMES
from mm_runner.runner._environment import fix_cublas_workspace, set_up_process

if TYPE_CHECKING:
    from mm_runner.hooks import Hook

# Keys without which a run only trains.
_LEFT_OUT = (
    *("experiment_name", "visualizer", "log_writers"),
    *("val_cfg", "val_dataloader", "val_evaluator"),
    *("test_cfg", "test_dataloader", "test_evaluator"),
)


class EndOfTrialError(Exception):
    """Ends a trial."""


def training_config(cfg: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a deep copy of ``cfg`` for a run that only trains, and leaves no crash bundle.

    Raises:
        ConfigError: If it cannot be copied; the message begins with ``what``, the tool.
    """
    left_out = {*_LEFT_OUT, *HOMES}  # variables of the file are no longer known as such
    try:
        copied = copy.deepcopy({name: one for name, one in cfg.items() if name not in left_out})
    except Exception as error:
        raise ConfigError(
            f"{what}: the configuration is used several times, and cannot be copied: {error}. "
            "Give dicts with 'type' instead of objects."
        ) from error
    return {**copied, "crash_bundle": False, "log_level": "WARNING"}


def endless_config(cfg: Mapping[str, Any], directory: Path, what: str) -> dict[str, Any]:
    """Return a copy of ``cfg`` for an endless training in ``directory`` without our hooks."""
    copied = training_config(cfg, what)
    train_cfg = copied.get("train_cfg")
    kind = train_cfg.get("type") if isinstance(train_cfg, Mapping) else object
    kind = LOOPS.get(kind) if isinstance(kind, str) else kind
    if kind in (None, EpochBasedTrainLoop, IterBasedTrainLoop):
        train_cfg = {"by_epoch": False, "max_iters": 2**31}
    default_hooks = copied.get("default_hooks") or {}
    kept = {name: hook for name, hook in default_hooks.items() if _is_users(hook)}
    return {
        **{name: one for name, one in copied.items() if name not in ("auto_scale_lr", "resume")},
        "custom_hooks": [one for one in copied.get("custom_hooks") or () if _is_users(one)],
        "default_hooks": {**kept, **dict.fromkeys(("checkpoint", "logger", "param_scheduler"))},
        "param_scheduler": None,
        "train_cfg": train_cfg,
        "work_dir": str(directory / "work"),  # a cache of compiled code lies beside it
    }


def _is_users(hook: Any) -> bool:
    kind = hook.get("type") if isinstance(hook, Mapping) else type(hook)
    kind = HOOKS.get(kind) if isinstance(kind, str) else kind
    return kind is not None and not kind.__module__.startswith("mm_runner.")


@contextmanager
def trial_directory(
    cfg: Mapping[str, Any], what: str, work_dir: str | Path | None = None
) -> Iterator[tuple[Path, torch.device]]:
    """Set up this process as a run would, and yield a directory for all processes, and the device.

    Without ``work_dir`` the directory is temporary. Generators are restored afterwards.
    """
    fix_cublas_workspace(cfg.get("randomness"))
    device = set_up_process(cfg.get("launcher") or "auto", cfg.get("env_cfg")).device
    generators = rng_state(device)
    directory = Path(work_dir or "").absolute()
    if work_dir is None:
        directory = run_on_main(lambda: Path(tempfile.mkdtemp(prefix=f"mm_runner-{what}-")))
    try:
        yield directory, device
        mm_dist.barrier()  # not where one has failed: the others may wait elsewhere
    finally:
        gc.collect()  # closes the files of the runs
        set_rng_state(generators, device)
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
