"""Saves checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner._main_process import run_on_main
from mm_runner._untrusted import is_file_name
from mm_runner.checkpoint import BackgroundWriter
from mm_runner.errors import CheckpointWriteError, ConfigError

from ._arguments import check_integer, name_list
from ._best_checkpoints import BestCheckpoints, file_of
from ._checkpoint_files import absolute, clean, delete, is_of_template, publish
from ._hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mm_runner.run_view import RunView

__all__ = ["CheckpointHook"]


class CheckpointHook(Hook):
    """Saves a checkpoint every so often, and the best one by a metric.

    A file that cannot be written is reported, training continues, and the next interval saves
    again; the last checkpoint is tried once more, and is an error then. Older files are deleted
    only when the new one is whole.

    Several of them may save the same run, such as the last two epochs and every tenth for good: a
    file stays as long as one of them keeps it.

    While gradients are accumulated over several steps, a checkpoint that is due is saved after the
    optimizer step that uses them: they are not saved themselves.

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
        for name, value in (("interval", interval), ("max_keep_ckpts", max_keep_ckpts)):
            check_integer(f"CheckpointHook.{name}", value)
        check_integer("CheckpointHook.save_begin", save_begin, least=0)
        for name, value in (("file_client_args", file_client_args), ("backend_args", backend_args)):
            if value is not None:
                raise ConfigError(
                    f"CheckpointHook.{name}: {value!r} was given; checkpoints are written to a "
                    "directory. Leave it out, and mount the storage as a directory for out_dir."
                )
        if minutes is not None and not minutes > 0:
            raise ConfigError(
                f"CheckpointHook.minutes: a positive number of minutes is needed, got {minutes!r}."
            )
        self.filename_tmpl = filename_tmpl or ("epoch_{}.pth" if by_epoch else "iter_{}.pth")
        if "{}" not in self.filename_tmpl or not is_file_name(self.filename_tmpl):
            raise ConfigError(
                "CheckpointHook.filename_tmpl: '{}' must stand for the epoch or the step in the "
                f"name of a file, got {filename_tmpl!r}. Give the directory as out_dir."
            )
        self.interval = interval
        self.by_epoch = by_epoch
        self.save_optimizer = save_optimizer
        self.save_param_scheduler = save_param_scheduler
        self.out_dir = out_dir
        self.max_keep_ckpts = max_keep_ckpts
        self.save_last = save_last
        self.published_keys = name_list("CheckpointHook.published_keys", published_keys)
        self.save_begin = save_begin
        self.minutes = minutes
        # Names of the numbered files, the oldest first. One is added before it is written, so that
        # the file itself knows of it, and leaves the list once it is deleted: whenever the run is
        # killed, the one that resumes deletes what the killed one could not.
        self._kept: list[str] = []
        self._best = BestCheckpoints(save_best, rule, greater_keys, less_keys)
        self._writer = BackgroundWriter() if async_save else None
        self._under_way: _Save | None = None
        # The number of steps in the newest file, and the file.
        self._newest: tuple[int, Path] | None = None
        self._owes_last = False
        # The epoch, or step, whose checkpoint waits for the next optimizer step.
        self._postponed: int | None = None
        # Tells the files of this run, resumed or not, from those of another in the same directory.
        self._run = ""

    @property
    def followed_metrics(self) -> dict[str, str]:
        """Metrics that validations must report, and the argument that asks for them."""
        return dict.fromkeys(self._best.metrics, "CheckpointHook.save_best")

    @property
    def best_records(self) -> dict[str, dict[str, Any]]:
        """The best validation so far by each metric: ``score``, ``epoch``, ``iter``, ``file``."""
        return {name: dict(record) for name, record in self._best.records.items()}

    def directory(self, runner: RunView) -> Path:
        """Return where the files are."""
        work_dir = absolute(runner.work_dir)
        if self.out_dir:  # from now on: a program may change its directory
            self.out_dir = str(absolute(self.out_dir))
        if not self.out_dir or Path(self.out_dir) == work_dir:
            return Path(runner.work_dir)
        return Path(self.out_dir) / work_dir.name

    @override
    def before_train(self, runner: RunView) -> None:
        self._run = self._run or runner.experiment_name
        self._newest = None  # of another training of this process, maybe
        run_on_main(lambda: clean(self.directory(runner), runner.logger))
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
        # Accumulated gradients are in no checkpoint: it waits for the step that uses them.
        if self._postponed is not None and (is_last or not runner.holds_gradients):
            num_steps = runner.iter + 1
            number = self._postponed if self.by_epoch else num_steps
            self._postponed = None
            self._save(runner, number, num_steps=num_steps, is_last=is_last)

    @override
    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        if self._best.wants_any and metrics and runner.is_training:
            for name, score in self._best.improved(metrics).items():
                self._save_best(runner, name, score)

    @override
    def after_train(self, runner: RunView) -> None:
        self._settle(runner)
        is_newest = self._newest is not None and self._newest[0] == runner.iter
        is_cut_short = self.save_last and getattr(runner.train_loop, "stop_training", False)
        if is_cut_short and not is_newest and not runner.interruption.saved:
            self._save_last(runner)
        if self._owes_last:
            self._save_last(runner)
        if self._owes_last:
            raise CheckpointWriteError(
                f"The checkpoint at the end of training could not be written to "
                f"{self.directory(runner)}, twice; the log says why. The older ones are whole."
            )
        if self.published_keys:
            best = [record["file"] for record in self._best.records.values()]
            paths = [self.directory(runner) / name for name in [*self._kept[-1:], *best]]
            run_on_main(lambda: publish(paths, self.published_keys, runner.logger))

    @override
    def before_save_checkpoint(self, runner: RunView, checkpoint: dict[str, Any]) -> None:
        state = {"run": self._run, "kept": list(self._kept), "best": self.best_records}
        checkpoint[self._key(runner)] = state

    @override
    def after_load_checkpoint(self, runner: RunView, checkpoint: dict[str, Any]) -> None:
        if not runner.is_resuming:
            return
        state = checkpoint.get(self._key(runner), {})
        self._run = state.get("run", "")
        # No other file is deleted because a checkpoint names it.
        templates = (self.filename_tmpl, "epoch_{}.pth", "iter_{}.pth")
        self._kept = [
            name
            for name in state.get("kept", [])
            if any(is_of_template(name, template) for template in templates)
        ]
        self._best.take_over(state.get("best", {}))

    def save_now(self, runner: RunView, *, and_wait: bool = False) -> Path | None:
        """Save between two steps, whatever the interval; every process must call this.

        Args:
            runner: The run.
            and_wait: Return when the file is whole.

        Returns:
            The file, which may have been written before if no step was taken since; ``None`` if it
            could not be written.
        """
        is_written, now = self._settle(runner), runner.iter
        if not (is_written and self._newest and self._newest[0] == now):
            template = "iter_{}.pth" if self.by_epoch else None
            self._save(runner, now, template, num_steps=now, is_last=False, and_wait=and_wait)
        return self._newest[1] if self._newest and self._newest[0] == now else None

    def settle_all(self, runner: RunView) -> None:
        """Wait for the files under way, others' too: they, or what names them, may be the same."""
        for hook in [one for one in [*runner.hooks, self] if isinstance(one, CheckpointHook)]:
            hook._settle(runner)  # noqa: SLF001 - of this class

    def finish_writing(self) -> None:
        """Wait for the file under way, on this process alone; for a run that ends by an error."""
        if self._writer is not None:
            self._writer.abandon()

    def _save_last(self, runner: RunView) -> None:
        count = runner.epoch if self.by_epoch else runner.iter
        self._save(runner, count, num_steps=runner.iter, is_last=True, and_wait=True)

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
        self.settle_all(runner)  # what became of the files before decides what is kept
        name = (template or self.filename_tmpl).format(number)
        path = self.directory(runner) / name
        self._kept = [*(one for one in self._kept if one != name), name]
        limit = self.max_keep_ckpts
        superfluous = self._kept[:-limit] if limit > 0 else []
        kept_by_others = {one for hook in self._beside(runner) for one in hook._kept}  # noqa: SLF001
        newest, self._newest = self._newest, (num_steps, path)
        self._owes_last = False

        def on_written() -> None:
            self._kept = [one for one in self._kept if one not in superfluous]

        def on_failed() -> None:
            self._kept.remove(name)
            self._newest, self._owes_last = newest, is_last

        save = _Save(
            path,
            {
                "save_optimizer": self.save_optimizer,
                "save_param_scheduler": self.save_param_scheduler,
                "then": lambda: delete(
                    [path.with_name(one) for one in superfluous if one not in kept_by_others],
                    runner.logger,
                ),
            },
            on_written,
            on_failed,
        )
        self._write(runner, save, and_wait=and_wait)
        runner.interruption.note_saved()

    def _save_best(self, runner: RunView, metric: str, score: float) -> None:
        self.settle_all(runner)  # what became of the file before decides what was best before
        before, file = dict(self._best.records), file_of(metric)
        record = {"score": score, "epoch": runner.epoch, "iter": runner.iter, "file": file}
        self._best.records[metric] = record

        def on_failed() -> None:
            self._best.records = before

        save = _Save(
            self.directory(runner) / file,
            {
                "save_optimizer": False,
                "save_param_scheduler": False,
                "whole": True,
                "mark_as_latest": False,
            },
            lambda: runner.logger.info(f"Best {metric} so far: {score:.4f}, saved as {file}."),
            on_failed,
        )
        self._write(runner, save)

    def _write(self, runner: RunView, save: _Save, *, and_wait: bool = False) -> None:
        try:
            runner.save_checkpoint(
                save.path.parent, save.path.name, writer=self._writer, **save.options
            )
        except CheckpointWriteError as error:
            self._fail(runner, save, error)
            return
        if self._writer is None:
            save.on_written()
            return
        self._under_way = save
        if and_wait:
            self._settle(runner)

    def _settle(self, runner: RunView) -> bool:
        """Wait for the file under way, if any; return whether it was written."""
        save, self._under_way = self._under_way, None
        if save is None or self._writer is None:
            return True
        try:
            self._writer.join()  # its part of a sharded model
            run_on_main(self._writer.wait)
        except CheckpointWriteError as error:
            self._fail(runner, save, error)
            return False
        save.on_written()
        return True

    def _fail(self, runner: RunView, save: _Save, error: CheckpointWriteError) -> None:
        save.on_failed()
        runner.logger.error(f"{error}{'' if self._owes_last else ' Training continues.'}")

    def _key(self, runner: RunView) -> str:
        """Return the checkpoint's entry of this hook: of several, each has its own."""
        hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
        number = hooks.index(self) + 1 if self in hooks else 1
        return "checkpoint_hook" if number == 1 else f"checkpoint_hook#{number}"

    def _beside(self, runner: RunView) -> list[CheckpointHook]:
        """Return the other such hooks that save to the same directory."""
        hooks = (one for one in runner.hooks if isinstance(one, CheckpointHook) and one is not self)
        return [one for one in hooks if one.directory(runner) == self.directory(runner)]


@dataclass(frozen=True)
class _Save:
    """One file to be written.

    Args:
        path: The file.
        options: Of ``Runner.save_checkpoint``.
        on_written: Called on all processes once the file is known to be whole.
        on_failed: Called on all processes once writing is known to have failed.
    """

    path: Path
    options: dict[str, Any]
    on_written: Callable[[], None]
    on_failed: Callable[[], None]
