"""``mm-runner train --fast-dev-run``."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.errors import ComponentNotFoundError, ConfigError
from mm_runner.evaluator import DumpResults, evaluator_type
from mm_runner.hooks import CheckpointHook, Hook, LoggerHook
from mm_runner.loops import AbstractTrainLoop, EndOfTrainingError
from mm_runner.registry import HOOKS, METRICS
from mm_runner.runner import Runner
from mm_runner.runner._checks import without_variables
from mm_runner.runner._environment import set_up_process

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["try_out"]

_PHASES = {"train": "trained", "val": "validated", "test": "tested"}


def try_out(cfg: Mapping[str, Any], num_batches: int, work_dir: str | None) -> str:
    """Train, validate and test a few batches, and keep nothing.

    Every process must call this.

    Args:
        cfg: A full configuration.
        num_batches: Of each phase and process.
        work_dir: Where logs go; by default a temporary directory, removed afterwards.

    Returns:
        What ran.
    """
    set_up_process(cfg.get("launcher") or "auto", cfg.get("env_cfg"))
    directory = Path(work_dir).absolute() if work_dir is not None else _temporary_directory()
    try:
        counter = _try_out(_harmless(cfg, directory), num_batches)
        mm_dist.barrier()  # others may still write
    finally:
        gc.collect()  # the run's files are closed with it
        if work_dir is None and mm_dist.is_main_process():
            shutil.rmtree(directory, ignore_errors=True)
    kept = "nothing was kept" if work_dir is None else f"the logs are in {directory}"
    ran = ", ".join(f"{_PHASES[phase]} {number}" for phase, number in counter.counts.items())
    return f"fast-dev-run: {ran} batches in each process: everything ran; {kept}."


def _try_out(cfg: Mapping[str, Any], num_batches: int) -> _FirstBatches:
    runner = _UnsavedRunner.from_cfg(cfg)
    counter = _FirstBatches(num_batches)
    runner.register_hook(counter)
    runner.interruption.saves = False
    runner.train()
    # A training loop of the user's own may have another mind about when.
    if cfg.get("val_dataloader") is not None and "val" not in counter.counts:
        runner.val()
    if cfg.get("test_dataloader") is not None:
        runner.test()
    return counter


def _temporary_directory() -> Path:
    return run_on_main(lambda: Path(tempfile.mkdtemp(prefix="mm_runner-fast-dev-run-")))


class _UnsavedRunner(Runner):
    """Saves nothing, whoever asks."""

    @override
    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        return None


class _UnsavedHook(CheckpointHook):
    """Looks at its arguments, and at the metrics for the best one, and saves nothing."""

    @override
    def before_train(self, runner: RunView) -> None: ...

    @override
    def after_train_epoch(self, runner: RunView) -> None: ...

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None: ...

    @override
    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        if self._best.wants_any and metrics and runner.is_training:
            self._best.improved(metrics)

    @override
    def after_train(self, runner: RunView) -> None: ...

    @override
    def save_now(self, runner: RunView, *, and_wait: bool = False) -> None:
        return None


class _FirstBatches(Hook):
    """Lets each phase go through its first batches, and counts them.

    Args:
        num_batches: Of each phase and process.

    Attributes:
        counts: Batches by phase, of those that ran.
    """

    priority = "LOWEST"

    def __init__(self, num_batches: int) -> None:
        self.num_batches = num_batches
        self.counts: dict[str, int] = {}

    @override
    def before_train(self, runner: RunView) -> None:
        # What is accumulated by then goes into a step, so that there is one.
        runner.optim_wrapper.initialize_count_status(
            runner.model, runner.iter, _fewer(self.num_batches, runner.train_loop)
        )

    @override
    def before_run(self, runner: RunView) -> None:
        if runner.is_training and hasattr(runner.train_loop, "shorten"):
            runner.train_loop.shorten(self.num_batches)
        for loop in (vars(runner).get("val_loop"), vars(runner).get("test_loop")):
            if loop is not None:
                loop.limit = self.num_batches

    @override
    def _after_iter(
        self,
        runner: RunView,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = "train",
    ) -> None:
        self.counts[mode] = self.counts.get(mode, 0) + 1
        if mode == "train" and self.counts[mode] >= self.num_batches:
            self._end(vars(runner).get("train_loop"))

    def _end(self, loop: Any) -> None:
        if not isinstance(loop, AbstractTrainLoop):  # which knows how many there are to be
            loop.stop_training = True
        if self.counts["train"] > self.num_batches:
            raise EndOfTrainingError  # it has steps of its own, and does not look


def _fewer(num_batches: int, loop: Any) -> int:
    try:
        return min(num_batches, len(loop.dataloader))
    except (AttributeError, TypeError):
        return num_batches


def _harmless(cfg: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return a configuration whose run writes to ``directory`` only, and begins anew."""
    changed = without_variables(cfg)
    left_out = ["log_writers", "visualizer", *(["load_from"] if cfg.get("resume") else [])]
    for name in left_out:
        changed.pop(name, None)
    changed |= {"work_dir": str(directory), "resume": False, "crash_bundle": False}
    compiled = cfg.get("compile")
    if isinstance(compiled, Mapping) and compiled.get("cache") is True:
        changed["compile"] = {key: one for key, one in compiled.items() if key != "cache"}
    defaults = dict(cfg.get("default_hooks") or {})
    changed["default_hooks"] = {**defaults, **_default_hooks(defaults)}
    if cfg.get("custom_hooks"):
        hooks = [_unsaved(hook) for hook in cfg["custom_hooks"]]
        changed["custom_hooks"] = [hook for hook in hooks if hook is not None]
    for name in ("val_evaluator", "test_evaluator"):
        if cfg.get(name) is not None:
            changed[name] = _evaluator_in(cfg[name], directory)
    return changed


def _default_hooks(given: Mapping[str, Any]) -> dict[str, Any]:
    checkpoint, logger = given.get("checkpoint", {}), given.get("logger", {})
    if isinstance(checkpoint, Mapping) and "type" not in checkpoint:
        checkpoint = {"type": "CheckpointHook", "interval": 1, **checkpoint}
    is_usual = isinstance(logger, Mapping) and logger.get("type") in (
        None,
        "LoggerHook",
        LoggerHook,
    )
    if is_usual:  # a line for each batch, which goes nowhere else
        logger = {**logger, "interval": 1}
        logger = {key: one for key, one in logger.items() if key not in ("out_dir", "keep_local")}
    return {"checkpoint": _unsaved(checkpoint), "logger": logger}


def _unsaved(hook: Any) -> Any:
    """Return a hook or its config; of one that saves, one that does not, or ``None``."""
    kind = _named(HOOKS, hook["type"]) if _has_type(hook) else type(hook)
    if not (isinstance(kind, type) and issubclass(kind, CheckpointHook)):
        return hook
    return {**hook, "type": _UnsavedHook} if kind is CheckpointHook and _has_type(hook) else None


def _evaluator_in(evaluator: Any, directory: Path) -> Any:
    """Return an evaluator, a metric or their config that keeps predictions in ``directory``."""
    if isinstance(evaluator, (list, tuple)):
        return [_evaluator_in(one, directory) for one in evaluator]
    if evaluator_type(evaluator) is not None:
        return {**evaluator, "metrics": _evaluator_in(evaluator.get("metrics"), directory)}
    for metric in getattr(evaluator, "metrics", [evaluator]):
        if isinstance(metric, DumpResults):
            metric.out_file_path = directory / metric.out_file_path.name
    kind = _named(METRICS, evaluator["type"]) if _has_type(evaluator) else None
    is_dump = isinstance(kind, type) and issubclass(kind, DumpResults)
    if is_dump and "out_file_path" in evaluator:
        name = Path(str(evaluator["out_file_path"])).name
        return {**evaluator, "out_file_path": str(directory / name)}
    return evaluator


def _has_type(cfg: Any) -> bool:
    return isinstance(cfg, Mapping) and "type" in cfg


def _named(registry: Any, kind: Any) -> Any:
    try:
        return registry.get(kind) if isinstance(kind, str) else kind
    except (ComponentNotFoundError, ConfigError):
        return None  # the Runner says what is wrong
