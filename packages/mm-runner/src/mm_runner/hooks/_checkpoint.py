"""Saves checkpoints."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner._main_process import run_on_all, run_on_main
from mm_runner._untrusted import is_file_name
from mm_runner.checkpoint import (
    BackgroundWriter,
    load_checkpoint_file,
    remove_checkpoint,
    remove_leftovers,
    save_checkpoint_file,
)
from mm_runner.errors import CheckpointError, CheckpointWriteError, ConfigError
from mm_runner.evaluator import as_number, score_of
from mm_runner.registry import check_integer, need_names

from ._hook import Hook
from ._metrics import is_better, rule_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

    from mm_runner.run_view import RunView

_KEY = "checkpoint_hook"


class CheckpointHook(Hook):
    """Save a checkpoint at an interval, and the best one by a metric.

    A failed write is logged, training continues, and the next interval saves again; the last
    checkpoint is tried once more, and then is an error. Older files are deleted only when the new
    one is whole. While gradients are accumulated, a checkpoint waits for the optimizer step.

    Args:
        interval: Epochs, or steps, between two checkpoints. Zero and negative values save the last
            one only.
        by_epoch: Count epochs; otherwise steps.
        save_optimizer: Include the optimizer and the loss scaler.
        save_param_scheduler: Include the schedules' positions.
        out_dir: Save to a folder in it that is named like the work directory. Defaults to the work
            directory itself.
        max_keep_ckpts: Number of checkpoints to keep, besides the best; ``-1`` keeps all.
        save_last: Save at the end of training regardless of the interval, also where a hook ends
            it early.
        save_best: Name of a metric or a list of names, ``"auto"`` for the first one reported, or
            ``None``.
        rule: ``"greater"`` or ``"less"`` is better, or a list with one for each metric; by default
            inferred from the metric's name.
        filename_tmpl: File name with ``{}`` for the epoch or step; ``"epoch_{}.pth"`` or
            ``"iter_{}.pth"`` by default.
        published_keys: Entries of the checkpoint, such as ``"state_dict"``. At the end of training
            the last and the best ones are written once more with these entries only, as
            ``<name>-<8 digits of the SHA-256>.pth``.
        save_begin: The first epoch, or step, that is saved; the others come at ``interval`` from
            there. Defaults to 0, which saves the first at ``interval``.
        async_save: Write in a thread, while training continues after a copy in memory. A failure is
            logged at the next save. The end of training and a preemption wait for the file.

    Attributes:
        save_best: Names of metrics, or ``["auto"]``.
        best_records: The best validation so far by metric: ``score``, ``epoch``, ``iter``,
            ``file``.

    Raises:
        ConfigError: If an argument is out of its range.
    """

    priority = "VERY_LOW"
    only_one = True

    def __init__(
        self,
        interval: int = -1,
        by_epoch: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        save_optimizer: bool = True,  # noqa: FBT001, FBT002
        save_param_scheduler: bool = True,  # noqa: FBT001, FBT002
        out_dir: str | None = None,
        max_keep_ckpts: int = -1,
        save_last: bool = True,  # noqa: FBT001, FBT002
        save_best: str | Sequence[str] | None = None,
        rule: str | Sequence[str] | None = None,
        filename_tmpl: str | None = None,
        published_keys: str | Sequence[str] | None = None,
        save_begin: int = 0,
        *,
        async_save: bool = False,
    ) -> None:
        check_integer("CheckpointHook.interval", interval)
        check_integer("CheckpointHook.max_keep_ckpts", max_keep_ckpts)
        check_integer("CheckpointHook.save_begin", save_begin, least=0)
        self.filename_tmpl = filename_tmpl or ("epoch_{}.pth" if by_epoch else "iter_{}.pth")
        if "{}" not in self.filename_tmpl or not is_file_name(self.filename_tmpl):
            raise ConfigError(
                "CheckpointHook.filename_tmpl: '{}' must stand for the epoch or the step in the "
                f"name of a file, got {filename_tmpl!r}. Give the directory as out_dir."
            )
        self.interval, self.by_epoch, self.save_begin = interval, by_epoch, save_begin
        self.save_optimizer, self.save_param_scheduler = save_optimizer, save_param_scheduler
        # Absolute now: a program may change its directory. Links are not followed, so that all
        # processes find the same path.
        self.out_dir = os.path.abspath(out_dir) if out_dir else None  # noqa: PTH100
        self.max_keep_ckpts, self.save_last = max_keep_ckpts, save_last
        self.published_keys = need_names(published_keys, "CheckpointHook.published_keys")
        self.save_best = need_names(save_best, "CheckpointHook.save_best")
        self.best_records: dict[str, dict[str, Any]] = {}
        self._rules = self._rules_of(need_names(rule, "CheckpointHook.rule"))
        # Names of the numbered files, the oldest first. One is added before it is written, and
        # leaves the list once it is deleted: a resumed run deletes what a killed one could not.
        self._kept: list[str] = []
        # The number of steps in the newest file, and the file.
        self._newest: tuple[int, Path] | None = None
        self._writer = BackgroundWriter() if async_save else None
        # What the list, the newest and the best are once the file under way is whole, if there is
        # one.
        self._to_come: tuple[list[str], Any, dict[str, dict[str, Any]]] | None = None
        self._first_iter = 0
        # The epoch, or step, whose checkpoint waits for the next optimizer step.
        self._due: int | None = None

    def _rules_of(self, given: list[str]) -> dict[str, str]:
        """Return ``"greater"`` or ``"less"`` for each metric; without a rule, not for "auto"."""
        rules = given * len(self.save_best) if len(given) == 1 else given
        if rules and len(rules) != len(self.save_best):
            raise ConfigError(
                f"CheckpointHook.rule: {len(rules)} rules were given for {len(self.save_best)} "
                "metrics in save_best; give one for each, or one for all."
            )
        return {
            name: rule_of(name, "CheckpointHook.rule", rule)
            for name, rule in zip_longest(self.save_best, rules)
            if rule or name != "auto"
        }

    @property
    def followed_metrics(self) -> dict[str, str]:
        """Metrics that validations must report, and the argument that asks for them."""
        names = [] if self.save_best == ["auto"] else self.save_best
        return dict.fromkeys(names, "CheckpointHook.save_best")

    def directory(self, runner: RunView) -> Path:
        """Return where the files are."""
        work_dir = Path(os.path.abspath(runner.work_dir))  # noqa: PTH100
        is_own = self.out_dir is None or Path(self.out_dir) == work_dir
        return work_dir if is_own else Path(str(self.out_dir), work_dir.name)

    @override
    def before_train(self, runner: RunView) -> None:
        self._newest, self._first_iter = None, runner.iter
        for path in run_on_main(lambda: [*remove_leftovers(self.directory(runner))]):
            runner.logger.info(f"Removed {path}, which a killed run left.")

    @override
    def after_train_epoch(self, runner: RunView) -> None:
        is_last = self.save_last and self.is_last_train_epoch(runner)
        if self.by_epoch and (
            is_last or self.every_n_epochs(runner, self.interval, self.save_begin)
        ):
            self._due = runner.epoch + 1
            self._save_due(runner, runner.iter, is_last=is_last)

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        is_last = False
        if not self.by_epoch:
            is_last = self.save_last and self.is_last_train_iter(runner)
            if is_last or self.every_n_train_iters(runner, self.interval, self.save_begin):
                self._due = runner.iter + 1
        if self._due is not None:
            self._save_due(runner, runner.iter + 1, is_last=is_last)

    def _save_due(self, runner: RunView, num_steps: int, *, is_last: bool) -> None:
        # Accumulated gradients are in no checkpoint: it waits for the step that uses them.
        if is_last or not runner.holds_gradients:
            number, self._due = self._due if self.by_epoch else num_steps, None
            self._save(runner, self.filename_tmpl.format(number), num_steps)

    @override
    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        if not self.save_best or not metrics or not runner.is_training:
            return
        names = self.save_best
        if names == ["auto"]:  # the first number, or what is refused below
            numbers = (name for name, value in metrics.items() if as_number(value) is not None)
            names = list(self.best_records) or [next(numbers, next(iter(metrics)))]
        for name in names:
            score = score_of(metrics, name, "CheckpointHook.save_best")
            self.settle(runner)  # a failed write changes the best record
            if self._is_best(name, score):
                self._save_best(runner, name, score)

    @override
    def after_train(self, runner: RunView) -> None:
        self.settle(runner)
        saved = self._newest[0] if self._newest else self._first_iter
        if self.save_last and saved != runner.iter and not runner.interruption.saved:
            # A hook ended the training, or the file could not be written.
            number = runner.epoch if self.by_epoch else runner.iter
            name = self.filename_tmpl.format(number)
            if not (self._save(runner, name, runner.iter) and self.settle(runner)):
                raise CheckpointWriteError(
                    f"The checkpoint at the end of training could not be written to "
                    f"{self.directory(runner)}; the log says why. The older ones are whole."
                )
        if self.published_keys:
            best = [record["file"] for record in self.best_records.values()]
            paths = [self.directory(runner) / name for name in [*self._kept[-1:], *best]]
            run_on_main(lambda: _publish(paths, self.published_keys, runner.logger))

    @override
    def before_save_checkpoint(self, runner: RunView, checkpoint: dict[str, Any]) -> None:
        kept, _, best = self._to_come or (self._kept, None, self.best_records)
        records = {name: dict(record) for name, record in best.items()}
        checkpoint[_KEY] = {"kept": list(kept), "best": records}

    @override
    def after_load_checkpoint(self, runner: RunView, checkpoint: dict[str, Any]) -> None:
        if not runner.is_resuming:
            return
        state = checkpoint.get(_KEY, {})
        # No other file is deleted, or taken for a model, because a checkpoint names it.
        templates = (self.filename_tmpl, "epoch_{}.pth", "iter_{}.pth")
        pattern = "|".join(re.escape(one).replace(r"\{\}", "[0-9]+", 1) for one in templates)
        self._kept = [
            name
            for name in state.get("kept", [])
            if re.fullmatch(pattern, name) and is_file_name(name)
        ]
        for name, record in state.get("best", {}).items():
            is_followed = name in self.save_best or self.save_best == ["auto"]
            if is_followed and record.get("file") == _file_of_best(name):
                self.best_records[name] = dict(record)

    def save_now(self, runner: RunView) -> Path | None:
        """Save all of the run between two steps, whatever the interval; every process calls this.

        Returns:
            The file, which is whole, and may have been written before if no step was taken since;
            ``None`` if it could not be written.
        """
        now, is_whole = runner.iter, self.save_optimizer and self.save_param_scheduler
        if not (self.settle(runner) and is_whole and self._newest and self._newest[0] == now):
            template = "iter_{}.pth" if self.by_epoch else self.filename_tmpl
            self._save(runner, template.format(now), now, is_whole=True)
            self.settle(runner)
        return self._newest[1] if self._newest and self._newest[0] == now else None

    @override
    def clean_up(self, runner: RunView) -> None:
        if self._writer is not None:  # a run that failed waits for the file under way
            self._writer.join()

    def _is_best(self, name: str, score: float) -> bool:
        before = self.best_records.get(name, {}).get("score", math.nan)
        if math.isnan(before):
            return not math.isnan(score)
        rule = self._rules.get(name) or self._rules.get("auto")
        return is_better(score, before, rule or rule_of(name, "CheckpointHook.rule"))

    def _save(self, runner: RunView, name: str, num_steps: int, *, is_whole: bool = False) -> bool:
        """Save to the file ``name``; return whether it was, or may yet be, written."""
        self.settle(runner)  # a failed write changes which files are kept
        directory = self.directory(runner)
        kept = [*(one for one in self._kept if one != name), name]
        self._to_come = kept, (num_steps, directory / name), self.best_records
        runner.message_hub.update_info("last_ckpt", str(directory / name))
        outdated = kept[: -self.max_keep_ckpts] if self.max_keep_ckpts > 0 else []
        return self._write(
            runner,
            name,
            save_optimizer=self.save_optimizer or is_whole,
            save_param_scheduler=self.save_param_scheduler or is_whole,
            then=lambda: _delete([directory / one for one in outdated], runner.logger),
        )

    def _save_best(self, runner: RunView, metric: str, score: float) -> None:
        file = _file_of_best(metric)
        record = {"score": score, "epoch": runner.epoch, "iter": runner.iter, "file": file}
        self._to_come = self._kept, self._newest, {**self.best_records, metric: record}
        runner.logger.info(f"Best {metric} so far: {score:.4f}; saving {file}.")
        ending = f"_{metric}" if len(self.save_best) > 1 else ""
        facts = {"best_ckpt": str(self.directory(runner) / file), "best_score": score}
        runner.message_hub.update_info_dict({f"{k}{ending}": one for k, one in facts.items()})
        self._write(
            runner,
            file,
            save_optimizer=False,
            save_param_scheduler=False,
            whole=True,
            mark_as_latest=False,
        )

    def _write(self, runner: RunView, name: str, **options: Any) -> bool:
        try:
            runner.save_checkpoint(self.directory(runner), name, writer=self._writer, **options)
        except CheckpointWriteError as error:
            return self.settle(runner, error)
        return self._writer is not None or self.settle(runner)

    def settle(self, runner: RunView, error: CheckpointWriteError | None = None) -> bool:
        """Wait for the file under way, if any; return whether it was written."""
        to_come, self._to_come = self._to_come, None
        if to_come is None:
            return True
        if error is None and self._writer is not None:
            try:
                run_on_all(self._writer.wait)  # each writes its part of a sharded model
            except CheckpointWriteError as failure:
                error = failure
        if error is not None:
            runner.logger.error(f"{error} Training continues.")
            return False
        self._kept, self._newest, self.best_records = to_come
        if self.max_keep_ckpts > 0:
            self._kept = self._kept[-self.max_keep_ckpts :]
        return True


def _file_of_best(metric: str) -> str:
    return f"best_{metric.replace('/', '_')}.pth"


def _delete(paths: Iterable[Path], logger: logging.Logger) -> None:
    """Delete checkpoints; one that cannot be deleted is only reported."""
    for path in paths:
        try:
            remove_checkpoint(path)
        except OSError as error:
            logger.warning(f"The outdated checkpoint {path} could not be deleted: {error}")


def _publish(paths: Iterable[Path], keys: Sequence[str], logger: logging.Logger) -> None:
    """Write entries of checkpoints to files named after their SHA-256; log what fails."""
    for path in paths:
        unnamed = path.with_name(f"{path.stem}-published.pth")
        try:
            content = load_checkpoint_file(path)
            published = {key: content[key] for key in keys if key in content}
            save_checkpoint_file(published, unnamed)
        except CheckpointError as error:
            logger.error(f"published_keys: {error}")  # noqa: TRY400 - says it all
            continue
        digest = hashlib.sha256(unnamed.read_bytes()).hexdigest()
        named = unnamed.replace(path.with_name(f"{path.stem}-{digest[:8]}.pth"))
        logger.info(f"{', '.join(published)} of {path.name} are published as {named.name}.")
