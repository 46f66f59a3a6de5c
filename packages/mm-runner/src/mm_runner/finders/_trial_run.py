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
from mm_runner.runner._checks import without_variables
from mm_runner.runner._environment import fix_cublas_workspace, set_up_process

__all__ = ["EndOfTrialError", "begin_trials", "run_trial", "trial_config", "trial_directory"]

_NEEDED = ("train_dataloader", "train_cfg", "optim_wrapper")

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
_BEGIN = ("begin_iter", "begin_epoch")


class EndOfTrialError(Exception):
    """Ends a trial."""


def begin_trials(cfg: Mapping[str, Any], what: str) -> torch.device:
    """Check that ``cfg`` trains, set up this process as a run would, and return its device.

    Args:
        cfg: A full configuration.
        what: Names what the trial is for, for messages.

    Raises:
        ConfigError: If it does not train.
    """
    for key in _NEEDED:
        if cfg.get(key) is None:
            raise ConfigError(
                f"{key}: this key is missing; {what} trains some steps, and needs "
                "train_dataloader, train_cfg and optim_wrapper."
            )
    fix_cublas_workspace(cfg.get("randomness"))
    return set_up_process(cfg.get("launcher") or "auto", cfg.get("env_cfg")).device


def trial_config(
    cfg: Mapping[str, Any], directory: Path, what: str, *, keep: tuple[type[Hook], ...] = ()
) -> dict[str, Any]:
    """Return a copy of ``cfg`` for a run that only trains, and writes to ``directory``.

    Of the hooks, those of mm-runner are left out: they save, log, validate, stop or average. The
    user's own run along.

    Args:
        cfg: A full configuration that trains.
        directory: For what a run writes whatever is configured.
        what: Names what the trial is for, for messages.
        keep: Hooks of mm-runner that are not left out, and act from the first step on.

    Raises:
        ConfigError: If it cannot be copied.
    """
    whole = without_variables(cfg)
    kept = {name: value for name, value in whole.items() if name not in _LEFT_OUT}
    try:
        # All at once: what two entries share, such as a model and its optimizer, stays shared.
        copied: dict[str, Any] = copy.deepcopy(kept)
    except Exception as error:
        raise ConfigError(
            f"{what}: the configuration has to be copied, and cannot be: {error}. Give dicts with "
            "'type' instead of objects."
        ) from error
    hooks = copied.get("default_hooks") or {}
    own = {name: _as_kept(hook) for name, hook in hooks.items() if not _is_left_out(hook, keep)}
    return {
        **copied,
        "crash_bundle": False,
        "custom_hooks": [
            _as_kept(hook)
            for hook in copied.get("custom_hooks") or ()
            if not _is_left_out(hook, keep)
        ],
        "default_hooks": {**own, **dict.fromkeys(_DEFAULT_HOOKS)},
        "log_level": "WARNING",
        # What a run writes beside its work_dir (a cache of compiled code) goes there too.
        "work_dir": str(directory / "work"),
    }


def run_trial(cfg: Mapping[str, Any], hook: Hook) -> None:
    """Train until ``hook`` raises :class:`EndOfTrialError`, or to the end.

    All hooks clean up; where it raises, their ``after_train`` and ``after_run`` are not called.

    Args:
        cfg: Of :func:`trial_config`.
        hook: Is called after all others.
    """
    runner = Runner.from_cfg(cfg)
    runner.register_hook(hook)
    runner.interruption.saves = False
    with suppress(EndOfTrialError):
        runner.train()


@contextmanager
def trial_directory(what: str, device: torch.device) -> Iterator[Path]:
    """Give all processes a temporary directory.

    Random numbers, and whether algorithms are deterministic, are the same afterwards.

    Args:
        what: Part of its name.
        device: Of this process.
    """
    before, algorithms = rng_state(device), _algorithms()
    directory = run_on_main(lambda: Path(tempfile.mkdtemp(prefix=f"mm_runner-{what}-")))
    try:
        yield directory
        mm_dist.barrier()  # where one fails the others may wait elsewhere
    finally:
        set_rng_state(before, device)
        _choose_algorithms(*algorithms)
        if mm_dist.is_main_process():
            shutil.rmtree(directory, ignore_errors=True)


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


def _is_left_out(hook: Any, keep: tuple[type[Hook], ...]) -> bool:
    kind = hook.get("type") if isinstance(hook, Mapping) else type(hook)
    if isinstance(kind, str):
        kind = HOOKS.get(kind)
    # A config without a type changes a default hook.
    is_ours = kind is None or str(getattr(kind, "__module__", "")).startswith(_OURS)
    return is_ours and kind not in keep


def _as_kept(hook: Any) -> Any:
    """Return ``hook`` so that it begins at once: a trial is over before the configured begin."""
    kind = hook.get("type") if isinstance(hook, Mapping) else type(hook)
    if isinstance(kind, str):
        kind = HOOKS.get(kind)
    if not str(getattr(kind, "__module__", "")).startswith(_OURS):
        return hook  # the user's own
    if isinstance(hook, Mapping):
        return {name: value for name, value in hook.items() if name not in _BEGIN}
    for name in _BEGIN:
        setattr(hook, name, 0)
    return hook
