"""Saves checkpoints."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from typing_extensions import override

import mm_dist
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.errors import CheckpointError, CheckpointWriteError, ConfigError

from ._hook import Hook
from ._metric_rule import rule_of

__all__ = ["CheckpointHook"]


class CheckpointHook(Hook):
    """Saves a checkpoint every ``interval`` epochs, and the best one by a metric.

    Args:
        interval: Epochs between two checkpoints; ``-1`` saves none but the last.
        by_epoch: Count epochs; this version counts nothing else.
        save_optimizer: Include the optimizer and the loss scaler.
        save_param_scheduler: Include the schedules' positions.
        out_dir: Where to save; the work directory by default.
        max_keep_ckpts: Keep that many of the numbered checkpoints, the newest; ``-1`` keeps all.
            The best one is never removed.
        save_last: Save after the last epoch, whatever the interval.
        save_best: Name of a metric, ``"auto"`` for the first one reported, or ``None``.
        rule: ``"greater"`` or ``"less"`` is better; by default told from the metric's name.
        filename_tmpl: File name with ``{}`` for the epoch; ``"epoch_{}.pth"`` by default.
        save_begin: First epoch to save after.

    Raises:
        ConfigError: If an argument is out of its range.
    """

    priority = "VERY_LOW"

    def __init__(
        self,
        interval: int = -1,
        by_epoch: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        save_optimizer: bool = True,  # noqa: FBT001, FBT002
        save_param_scheduler: bool = True,  # noqa: FBT001, FBT002
        out_dir: str | None = None,
        max_keep_ckpts: int = -1,
        save_last: bool = True,  # noqa: FBT001, FBT002
        save_best: str | None = None,
        rule: str | None = None,
        filename_tmpl: str = "epoch_{}.pth",
        save_begin: int = 0,
    ) -> None:
        if not by_epoch:
            raise ConfigError(
                "CheckpointHook.by_epoch: False was given; this version saves at the end of epochs "
                "only. Leave it out, and choose the interval in epochs."
            )
        for argument, value in (
            ("interval", interval),
            ("max_keep_ckpts", max_keep_ckpts),
            ("save_begin", save_begin),
        ):
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(
                    f"CheckpointHook.{argument}: an integer is needed, got {value!r}."
                )
        if rule not in (None, "greater", "less"):
            raise ConfigError(f"CheckpointHook.rule: 'greater' or 'less' is needed, got {rule!r}.")
        if rule is None and save_best not in (None, "auto"):
            rule = rule_of(save_best)  # now, and not at the end of the first epoch
        if "{}" not in filename_tmpl:
            raise ConfigError(
                "CheckpointHook.filename_tmpl: '{}' must stand for the epoch, got "
                f"{filename_tmpl!r}."
            )
        self.interval = interval
        self.save_optimizer = save_optimizer
        self.save_param_scheduler = save_param_scheduler
        self.out_dir = out_dir
        self.max_keep_ckpts = max_keep_ckpts
        self.save_last = save_last
        self.save_best = save_best
        self.rule = rule
        self.filename_tmpl = filename_tmpl
        self.save_begin = save_begin
        self._kept: list[str] = []
        self._best: dict[str, Any] = {}

    @override
    def after_train_epoch(self, runner: Any) -> None:
        due = self.every_n_epochs(runner, self.interval, self.save_begin)
        if not due and not (self.save_last and self.is_last_train_epoch(runner)):
            return
        directory = Path(self.out_dir or runner.work_dir)
        name = self.filename_tmpl.format(runner.epoch + 1)
        # Entered before the file is written, so that a resumed run prunes it too.
        self._kept = [*(kept for kept in self._kept if kept != name), name]
        superfluous = self._kept[: -self.max_keep_ckpts] if self.max_keep_ckpts > 0 else []
        self._kept = self._kept[len(superfluous) :]
        try:
            runner.save_checkpoint(
                directory,
                name,
                save_optimizer=self.save_optimizer,
                save_param_scheduler=self.save_param_scheduler,
            )
        except CheckpointWriteError as error:
            if self.is_last_train_epoch(runner):
                raise
            self._tell_failure(runner, error)
            self._kept = [*superfluous, *self._kept[:-1]]
            return
        if mm_dist.is_main_process():
            # Only now that the new one is whole and named.
            for old in superfluous:
                (directory / old).unlink(missing_ok=True)

    @override
    def after_val_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        if self.save_best is None or not metrics or not runner.is_training:
            return
        name = next(iter(metrics)) if self.save_best == "auto" else self.save_best
        if name not in metrics:
            raise ConfigError(
                f"CheckpointHook.save_best: {name!r} was asked for; the validation reported "
                f"{', '.join(map(repr, metrics))}."
            )
        score = metrics[name]
        if not self._is_best(name, score):
            return
        before, new = self._best, f"best_{name.replace('/', '_')}.pth"
        old = before.get("file")
        self._best = {"metric": name, "score": score, "epoch": runner.epoch, "file": new}
        directory = Path(self.out_dir or runner.work_dir)
        try:
            runner.save_checkpoint(
                directory,
                new,
                save_optimizer=False,
                save_param_scheduler=False,
                meta={"epoch": runner.epoch, "iter": runner.iter},
                mark_as_latest=False,
            )
        except CheckpointWriteError as error:
            if runner.epoch == runner.max_epochs:
                raise
            self._tell_failure(runner, error)
            self._best = before
            return
        if old is not None and old != new and mm_dist.is_main_process():
            (directory / old).unlink(missing_ok=True)
        runner.logger.info(f"Best {name} so far: {score:.4f}, saved as {new}.")

    @override
    def before_save_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["checkpoint_hook"] = {"kept": list(self._kept), "best": dict(self._best)}

    @override
    def after_load_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        if runner.is_resuming:
            state = checkpoint.get("checkpoint_hook", {})
            self._kept = list(state.get("kept", []))
            self._best = dict(state.get("best", {}))
            self._add_best_of_last_epoch(runner, checkpoint.get("meta", {}).get("epoch", 0))

    def _add_best_of_last_epoch(self, runner: Any, epoch: int) -> None:
        """Take in what the validation after ``epoch`` found, once its checkpoint was written.

        The file of the best model tells; without this a worse one could overwrite it.
        """
        found: list[dict[str, Any]] = [{}]
        if self.save_best is not None and mm_dist.is_main_process():
            for path in Path(self.out_dir or runner.work_dir).glob("best_*.pth"):
                with suppress(CheckpointError):
                    content = load_checkpoint_file(path)
                    best = content.get("checkpoint_hook", {}).get("best", {})
                    same_run = content.get("meta", {}).get("seed") == runner.seed
                    if same_run and best.get("epoch") == epoch and best.get("file") == path.name:
                        found = [best]
        mm_dist.broadcast_object_list(found)
        self._best = found[0] or self._best

    def _tell_failure(self, runner: Any, error: CheckpointWriteError) -> None:
        runner.logger.error(f"{error} Training goes on; the next interval saves again.")

    def _is_best(self, name: str, score: float) -> bool:
        if self.rule is None:
            self.rule = rule_of(name)
        best = self._best.get("score")
        if math.isnan(score):
            return False
        if best is None or math.isnan(best):
            return True
        return bool(score > best if self.rule == "greater" else score < best)
