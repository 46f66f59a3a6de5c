"""Fast development run: a few batches of each phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.evaluator import DumpResults
from mm_runner.hooks import CheckpointHook, Hook, LoggerHook
from mm_runner.hooks._metrics import refuse_missing_metrics
from mm_runner.loops import EndOfTrainingError
from mm_runner.runner import Runner
from mm_runner.runner._checks import HOMES

from ._trial import trial_directory

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

_PHASES = {"train": "trained", "val": "validated", "test": "tested"}


def fast_dev_run(
    cfg: Mapping[str, Any], num_batches: int = 1, work_dir: str | Path | None = None
) -> str:
    """Train, validate and test a few batches, and keep nothing.

    Every process must call this.

    Args:
        cfg: A full configuration.
        num_batches: Number of batches in each phase, for each process.
        work_dir: Directory of the logs; by default a temporary one, removed afterwards.

    Returns:
        A sentence for the user: what ran.
    """
    with trial_directory(cfg, "fast-dev-run", work_dir) as (directory, _):
        place = directory if work_dir is not None else directory / "work"
        left_out = ["log_writers", "visualizer", *HOMES]  # variables are no longer known as such
        left_out += ["load_from"] if cfg.get("resume") else []
        kept = {key: one for key, one in cfg.items() if key not in left_out}
        own = {"work_dir": str(place), "resume": False, "crash_bundle": False}
        runner = _UnsavedRunner.from_cfg({**kept, **own})
        trial = _FirstBatches(num_batches, place)
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook):
                runner.hooks_list.remove(hook)
                trial.saving.append(hook)
            elif type(hook) is LoggerHook:
                hook.interval = 1
        runner.register_hook(trial)
        runner.interruption.saves = False
        runner.train()
        # A custom training loop may validate at other times, or never.
        if cfg.get("val_dataloader") is not None and "val" not in trial.counts:
            runner.val()
        if cfg.get("test_dataloader") is not None:
            runner.test()
    place_of_logs = "nothing was kept" if work_dir is None else f"the logs are in {directory}"
    ran = ", ".join(f"{_PHASES[phase]} {number}" for phase, number in trial.counts.items())
    return f"fast-dev-run: {ran} batches in each process: everything ran; {place_of_logs}."


class _UnsavedRunner(Runner):
    """Runner that ignores requests to save a checkpoint."""

    @override
    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        return None


class _FirstBatches(Hook):
    """Ends each phase after its first batches, and counts them; metrics write to ``directory``."""

    priority = "LOWEST"

    def __init__(self, num_batches: int, directory: Path) -> None:
        self.num_batches, self.directory = num_batches, directory
        self.counts: Counter[str] = Counter()  # by phase
        self.saving: list[Hook] = []  # hooks of the whole run, whose metrics must be there

    @override
    def before_run(self, runner: RunView) -> None:
        if runner.is_training and hasattr(runner.train_loop, "shorten"):
            runner.train_loop.shorten(self.num_batches)
        for loop in (vars(runner).get("val_loop"), vars(runner).get("test_loop")):
            if loop is None:
                continue
            loop.limit = self.num_batches
            for metric in getattr(getattr(loop, "evaluator", None), "metrics", ()):
                if isinstance(metric, DumpResults):
                    metric.out_file_path = self.directory / metric.out_file_path.name

    @override
    def before_train(self, runner: RunView) -> None:
        # Gradients accumulated in fewer batches than a window's go into a step too.
        loader: Any = getattr(runner.train_loop, "dataloader", None)
        has_length = hasattr(loader, "__len__")
        steps = min(self.num_batches, len(loader)) if has_length else self.num_batches
        runner.optim_wrapper.initialize_count_status(runner.model, runner.iter, steps)

    @override
    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        if metrics and runner.is_training:
            refuse_missing_metrics(metrics, self.saving, ())

    @override
    def _after_iter(
        self,
        runner: RunView,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = "train",
    ) -> None:
        self.counts[mode] += 1
        if mode == "train" and self.counts[mode] > self.num_batches:
            raise EndOfTrainingError  # a loop that shorten() does not end
