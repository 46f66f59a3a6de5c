"""Saves checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner._main_process import run_on_main
from mm_runner.errors import CheckpointWriteError

from ._best_checkpoints import BestCheckpoints, file_of
from ._checkpoint_arguments import (
    check_begin,
    check_integers,
    check_minutes,
    check_template,
    is_of_template,
    name_list,
    refuse_backends,
)
from ._checkpoint_directory import (
    absolute,
    clean_directory,
    delete_checkpoints,
    directory_of,
)
from ._checkpoint_saving import Save, Saving
from ._hook import Hook
from ._kept_checkpoints import KeptCheckpoints
from ._publishing import publish_checkpoints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mm_runner.run_view import RunView

__all__ = ["CheckpointHook"]


class CheckpointHook(Hook):
    """Saves a checkpoint every so often, and the best one by a metric.

    A file that cannot be written is reported, training goes on, and the next interval saves again;
    what is owed at the end of training is tried once more, and is an error then. Older files are
    deleted only when the new one is whole.

    Several of them may save the same run, such as the last two epochs and every tenth for good: a
    file stays as long as one of them keeps it.

    While gradients are accumulated over several steps, a checkpoint that is due is saved after the
    optimizer step that takes them in: they are not saved themselves.

    Args:
        interval: Epochs, or steps, between two checkpoints; ``-1``, and whatever is not positive,
            saves none but the last.
        by_epoch: Count epochs; otherwise steps.
        save_optimizer: Include the optimizer and the loss scaler.
        save_param_scheduler: Include the schedules' positions.
        out_dir: Save to a folder in it that is named like the work directory, so that several runs
            may share it; by default, or where it is the work directory, to the latter itself.
        max_keep_ckpts: Keep that many of the numbered checkpoints, the newest; ``-1`` keeps all.
            The best ones are never removed.
        save_last: Save at the end of training, whatever the interval, also where a hook ends it
            early.
        save_best: Name of a metric or a list of names, ``"auto"`` for the first one reported, or
            ``None``.
        rule: ``"greater"`` or ``"less"`` is better, or a list with one for each metric; by default
            told from the metric's name.
        greater_keys: Parts of names of metrics of which the greater value is better, besides the
            usual ones.
        less_keys: Likewise, the less.
        file_client_args: Refused unless ``None``: MMEngine's storage back ends.
        filename_tmpl: File name with ``{}`` for the epoch or step; ``"epoch_{}.pth"`` or
            ``"iter_{}.pth"`` by default.
        backend_args: Refused unless ``None``.
        published_keys: Entries of the checkpoint, such as ``"state_dict"``. At the end of training
            the last and the best ones are written once more with these entries only, as
            ``<name>-<8 digits of the SHA-256>.pth``.
        save_begin: The first epoch, or step, that is saved; the others come at ``interval`` from
            there. Defaults to 0, which saves the first at ``interval``.
        async_save: Let a thread write while training goes on, which then waits only for a copy in
            memory. One file is written at a time; a failure is reported at the next save. The end
            of training and a preemption wait for the file.
        minutes: Save also whenever so many minutes have passed since the last one, between two
            steps, as ``iter_N.pth``. The main process's clock counts.

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
        save_best: str | Sequence[str] | None = None,
        rule: str | Sequence[str] | None = None,
        greater_keys: Sequence[str] | None = None,
        less_keys: Sequence[str] | None = None,
        file_client_args: Any = None,
        filename_tmpl: str | None = None,
        backend_args: Any = None,
        published_keys: str | Sequence[str] | None = None,
        save_begin: int = 0,
        *,
        async_save: bool = False,
        minutes: float | None = None,
    ) -> None:
        check_integers(interval=interval, max_keep_ckpts=max_keep_ckpts, save_begin=save_begin)
        check_begin(save_begin)
        refuse_backends(file_client_args=file_client_args, backend_args=backend_args)
        check_minutes(minutes)
        self.filename_tmpl = filename_tmpl or ("epoch_{}.pth" if by_epoch else "iter_{}.pth")
        check_template(self.filename_tmpl)
        self.interval = interval
        self.by_epoch = by_epoch
        self.save_optimizer = save_optimizer
        self.save_param_scheduler = save_param_scheduler
        self.out_dir = out_dir
        self.save_last = save_last
        self.published_keys = name_list(published_keys, "published_keys")
        self.save_begin = save_begin
        self.minutes = minutes
        self._kept = KeptCheckpoints(max_keep_ckpts)
        self._best = BestCheckpoints(save_best, rule, greater_keys, less_keys)
        self._saving = Saving(in_background=async_save)
        # The number of steps in the newest file, and the file.
        self._newest: tuple[int, Path] | None = None
        self._owes_last = False
        # The epoch, or step, whose checkpoint waits for the next optimizer step.
        self._postponed: int | None = None
        # Tells the files of this run, resumed or not, from those of another in the same directory.
        self._run = ""

    @override
    def before_train(self, runner: RunView) -> None:
        self._run = self._run or runner.experiment_name
        self._newest = None  # of another training of this process, maybe
        directory = self.directory(runner)
        run_on_main(lambda: clean_directory(directory, runner.logger))
        if self.minutes is not None:
            saves = runner.interruption.save_every(60 * self.minutes, self.save_now)
            if not saves:
                runner.logger.warning(
                    f"CheckpointHook.minutes: {self.minutes} was given and has no effect, as the "
                    "processes cannot agree on a step to save after."
                )

    @override
    def after_train_epoch(self, runner: RunView) -> None:
        if not self.by_epoch:
            return
        is_last = self.save_last and self.is_last_train_epoch(runner)
        if is_last or self.every_n_epochs(runner, self.interval, self.save_begin):
            if runner.holds_gradients and not is_last:
                self._postponed = runner.epoch + 1
            else:
                self._save(runner, runner.epoch + 1, num_steps=runner.iter, is_last=is_last)

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        is_last = False
        if not self.by_epoch:
            is_last = self.save_last and self.is_last_train_iter(runner)
            if is_last or self.every_n_train_iters(runner, self.interval, self.save_begin):
                self._postponed = runner.iter + 1
        # Accumulated gradients are in no checkpoint: it waits for the step that takes them in.
        if self._postponed is not None and (is_last or not runner.holds_gradients):
            num_steps = runner.iter + 1
            count, self._postponed = self._postponed, None
            number = count if self.by_epoch else num_steps
            self._save(runner, number, num_steps=num_steps, is_last=is_last)

    @override
    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        if not self._best.wants_any or not metrics or not runner.is_training:
            return
        for name, score in self._best.improved(metrics).items():
            record = {"score": score, "epoch": runner.epoch, "iter": runner.iter}
            self._save_best(runner, name, {**record, "file": file_of(name)})

    @override
    def after_train(self, runner: RunView) -> None:
        self._saving.settle(runner, is_over=True)
        if self._was_cut_short(runner):
            self._save_last(runner)
        if self._owes_last:
            self._save_last(runner)
        if self._owes_last:
            raise CheckpointWriteError(
                f"The checkpoint at the end of training could not be written to "
                f"{self.directory(runner)}, twice; the log says why. The older ones are whole."
            )
        if self.published_keys:
            directory = self.directory(runner)
            names = [*self._kept.names[-1:], *self._best.saved_files]
            run_on_main(
                lambda: publish_checkpoints(directory, names, self.published_keys, runner.logger)
            )

    @override
    def before_save_checkpoint(self, runner: RunView, checkpoint: dict[str, Any]) -> None:
        checkpoint[self._key(runner)] = {
            "run": self._run,
            "kept": list(self._kept.names),
            "best": {name: dict(record) for name, record in self._best.records.items()},
        }

    @override
    def after_load_checkpoint(self, runner: RunView, checkpoint: dict[str, Any]) -> None:
        if not runner.is_resuming:
            return
        state = checkpoint.get(self._key(runner), {})
        self._run = state.get("run", "")
        # No other file is deleted because a checkpoint names it.
        self._kept.names = [name for name in state.get("kept", []) if self._is_numbered(name)]
        self._best.take_over(state.get("best", {}))

    @property
    def best_records(self) -> dict[str, dict[str, Any]]:
        """The best validation so far by each metric: ``score``, ``epoch``, ``iter``, ``file``."""
        return {name: dict(record) for name, record in self._best.records.items()}

    def save_now(self, runner: RunView, *, and_wait: bool = False) -> Path | None:
        """Save between two steps, whatever the interval; every process must call this.

        Args:
            runner: The run.
            and_wait: Return when the file is whole.

        Returns:
            The file, which may have been written before if no step was taken since; ``None`` if it
            could not be written.
        """
        is_written = self._saving.settle(runner)
        if is_written and self._newest and self._newest[0] == runner.iter:
            return self._newest[1]
        template = "iter_{}.pth" if self.by_epoch else None
        now = runner.iter
        self._save(runner, now, template, num_steps=now, is_last=False, and_wait=and_wait)
        return self._newest[1] if self._newest and self._newest[0] == runner.iter else None

    def _was_cut_short(self, runner: RunView) -> bool:
        """Tell whether a hook has ended training early, and what it has come to is unsaved."""
        is_newest = self._newest is not None and self._newest[0] == runner.iter
        is_cut_short = bool(getattr(runner.train_loop, "stop_training", False))
        return self.save_last and is_cut_short and not (is_newest or runner.interruption.saved)

    def _save_last(self, runner: RunView) -> None:
        count = runner.epoch if self.by_epoch else runner.iter
        self._save(runner, count, num_steps=runner.iter, is_last=True, and_wait=True)

    def _is_numbered(self, name: str) -> bool:
        templates = {self.filename_tmpl, "epoch_{}.pth", "iter_{}.pth"}
        return any(is_of_template(name, template) for template in templates)

    def directory(self, runner: RunView) -> Path:
        """Return where the files are."""
        if self.out_dir:  # from now on: a program may change its directory
            self.out_dir = str(absolute(self.out_dir))
        return directory_of(self.out_dir, runner.work_dir)

    def finish_writing(self) -> None:
        """Wait for the file under way, on this process alone; for a run that ends by an error."""
        self._saving.drain()

    def _save(
        self,
        runner: RunView,
        number: int,
        template: str | None = None,
        *,
        num_steps: int,
        is_last: bool,
        and_wait: bool = False,
    ) -> None:
        # First: what became of the files before decides what is kept.
        self.settle_all(runner)
        directory, name = self.directory(runner), (template or self.filename_tmpl).format(number)
        superfluous = self._kept.add(name)
        kept_by_others = {one for hook in self._beside(runner) for one in hook._kept.names}  # noqa: SLF001
        newest, self._newest = self._newest, (num_steps, directory / name)
        self._owes_last = False

        def take_back() -> None:
            self._kept.remove([name])
            self._newest, self._owes_last = newest, is_last

        def note() -> None:
            deleted = [one for one in superfluous if one not in kept_by_others]
            delete_checkpoints(directory, deleted, runner.logger)

        save = Save(
            directory / name,
            num_steps,
            {
                "save_optimizer": self.save_optimizer,
                "save_param_scheduler": self.save_param_scheduler,
            },
            on_written=lambda: self._kept.remove(superfluous),
            on_failed=take_back,
            on_main=note,
            kind="ending" if and_wait else "last" if is_last else "numbered",
        )
        self._saving.save(runner, save, and_wait=and_wait)
        runner.interruption.note_saved()

    def _save_best(self, runner: RunView, metric: str, record: dict[str, Any]) -> None:
        # First: what became of the file before decides what was best before.
        self.settle_all(runner)
        take_back = self._best.put(metric, record)
        directory, file = self.directory(runner), record["file"]
        options = {"save_optimizer": False, "save_param_scheduler": False, "whole": True}
        text = f"Best {metric} so far: {record['score']:.4f}, saved as {file}."
        save = Save(
            directory / file,
            runner.iter,
            {**options, "mark_as_latest": False},
            on_written=lambda: runner.logger.info(text),
            on_failed=take_back,
            kind="best",
        )
        self._saving.save(runner, save)

    def _key(self, runner: RunView) -> str:
        """Return the checkpoint's entry of this hook: of several, each has its own."""
        hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
        number = hooks.index(self) + 1 if self in hooks else 1
        return "checkpoint_hook" if number == 1 else f"checkpoint_hook#{number}"

    def _beside(self, runner: RunView) -> list[CheckpointHook]:
        """Return the other such hooks that save to the same directory."""
        hooks = (one for one in runner.hooks if isinstance(one, CheckpointHook) and one is not self)
        return [one for one in hooks if one.directory(runner) == self.directory(runner)]

    def settle_all(self, runner: RunView) -> None:
        """Wait for the files under way, others' too: they, or what names them, may be the same."""
        for hook in [one for one in [*runner.hooks, self] if isinstance(one, CheckpointHook)]:
            hook._saving.settle(runner)  # noqa: SLF001 - of this class
