"""A training of a few steps, of which nothing is kept."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import rng_state, set_rng_state
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.registry import HOOKS
from mm_runner.runner import Runner

__all__ = ["EndOfTrialError", "run_trial", "trial_config", "trial_directory"]

# What a run of a few steps is not to do, besides what its hooks would.
_LEFT_OUT = (
    "auto_scale_lr",
    "experiment_name",
    "log_writers",
    "param_scheduler",
    "resume",
    "test_cfg",
    "test_dataloader",
    "test_evaluator",
    "val_cfg",
    "val_dataloader",
    "val_evaluator",
    "visualizer",
)
_DEFAULT_HOOKS = ("checkpoint", "logger", "param_scheduler")
_OURS = "mm_runner."


class EndOfTrialError(Exception):
    """Ends a trial."""


def trial_config(cfg: Mapping[str, Any], directory: Path, what: str) -> dict[str, Any]:
    """Return a copy of ``cfg`` for a run that only trains, and writes to ``directory``.

    Of the hooks, those of mm-runner are left out: they save, log, validate, stop or average. The
    user's own run along.

    Args:
        cfg: A full configuration that trains.
        directory: For what a run writes whatever is configured.
        what: Names what the trial is for, for messages.

    Raises:
        ConfigError: If it does not train, or cannot be copied.
    """
    if cfg.get("optim_wrapper") is None:
        raise ConfigError(
            f"optim_wrapper: this key is missing; {what} trains some steps, and needs "
            "train_dataloader, train_cfg and optim_wrapper."
        )
    kept = {name: value for name, value in cfg.items() if name not in _LEFT_OUT}
    try:
        # All at once: what two entries share, such as a model and its optimizer, stays shared.
        copied: dict[str, Any] = copy.deepcopy(kept)
    except Exception as error:
        raise ConfigError(
            f"{what}: the configuration has to be copied, and cannot be: {error}. Give dicts with "
            "'type' instead of objects."
        ) from error
    hooks = copied.get("default_hooks") or {}
    own = {name: hook for name, hook in hooks.items() if not _is_left_out(hook)}
    return {
        **copied,
        "crash_bundle": False,
        "custom_hooks": [one for one in copied.get("custom_hooks") or () if not _is_left_out(one)],
        "default_hooks": {**own, **dict.fromkeys(_DEFAULT_HOOKS)},
        "log_level": "WARNING",
        "work_dir": str(directory),
    }


def run_trial(cfg: Mapping[str, Any], hook: Hook) -> None:
    """Train until ``hook`` raises :class:`EndOfTrialError`, or to the end.

    Args:
        cfg: Of :func:`trial_config`.
        hook: Is called after all others.
    """
    runner = Runner.from_cfg(cfg)
    runner.register_hook(hook)
    with suppress(EndOfTrialError):
        runner.train()


@contextmanager
def trial_directory(what: str) -> Iterator[Path]:
    """Give all processes a temporary directory; the random numbers are the same afterwards.

    Args:
        what: Part of its name.
    """
    before = rng_state(torch.device("cpu"))
    directory = run_on_main(lambda: Path(tempfile.mkdtemp(prefix=f"mm_runner-{what}-")))
    try:
        yield directory
    finally:
        set_rng_state(before, torch.device("cpu"))
        mm_dist.barrier()
        if mm_dist.is_main_process():
            shutil.rmtree(directory, ignore_errors=True)


def _is_left_out(hook: Any) -> bool:
    kind = hook.get("type") if isinstance(hook, Mapping) else type(hook)
    if isinstance(kind, str):
        kind = HOOKS.get(kind)
    # A config without a type changes a default hook.
    return kind is None or str(getattr(kind, "__module__", "")).startswith(_OURS)
