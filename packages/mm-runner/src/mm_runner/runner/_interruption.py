"""Saving and leaving between two steps that all processes agree on."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

import mm_dist
from mm_runner.errors import CheckpointWriteError, RunStopped
from mm_runner.hooks import CheckpointHook
from mm_runner.loops import AbstractTrainLoop, EndOfTrainingError

from ._signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mm_runner.runner import Runner

__all__ = ["Interruption"]

# Requests to all processes; the greatest number wins.
_SAVE, _TIME_UP, _TIME_UP_REQUEUE, _PREEMPTED, _INTERRUPTED = 1, 2, 3, 4, 5
_LEAVING = {
    _TIME_UP_REQUEUE: ("out of time", 75),
    _PREEMPTED: ("preempted", 75),
    _INTERRUPTED: ("interrupted", 130),
}
# Seconds, and the largest number of steps, between two exchanges of requests.
_INTERVAL_S, _MOST_STEPS = 0.2, 32


class Interruption:
    """Makes a run save, and leave, between two steps.

    SIGTERM and SIGUSR1 count as a preemption, SIGINT as Ctrl-C; any thread may also ask for the
    former. Several processes exchange their requests by a small all-reduce on the CPU, about five
    times a second, and act on the strongest after the same step.

    Attributes:
        saved: What the run saved as it left; ``None`` if it did not leave, or could not.
        ran_out_of_time: Whether training has ended because :meth:`end_after` was asked for it.
        saves: Whether to save a checkpoint where the run leaves; set to ``False`` for one of which
            nothing is to be kept. Defaults to ``True``.
    """

    def __init__(self) -> None:
        self.saves = True
        self._is_listening = False
        self._reset()

    def _reset(self) -> None:
        self.saved: Path | None = None
        self.ran_out_of_time = False
        self._wishes: set[int] = set()
        self._deadlines: dict[int, float] = {}  # of the main process
        self._save_every_s = 0.0
        self._save: Callable[[Runner], object] | None = None
        self._signals: StopSignals | None = None
        self._group: Any = None
        self._can_agree = True
        self._exchanged_s, self._interval, self._steps_left = time.monotonic(), 1, 1

    @property
    def pending(self) -> bool:
        """Whether there may be something to settle, never outside of a training.

        A loop reads it once a step::

            if runner.interruption.pending:
                runner.interruption.settle(runner)
        """
        if not self._is_listening:
            return False
        is_due = self._deadlines and time.monotonic() >= min(self._deadlines.values())
        return bool(self._wishes or is_due or self._group is not None)

    @contextmanager
    def listening(self, runner: Runner) -> Iterator[None]:
        """Listen while the block trains; every process must enter it."""
        self._reset()
        if runner.world_size > 1:
            self._group = _group_of_cpus(runner)
            self._can_agree = self._group is not None
        if self._can_agree:  # else a signal means what it meant before
            self._signals = StopSignals(
                lambda number: self._ask(_INTERRUPTED if number == signal.SIGINT else _PREEMPTED),
                runner.logger,
                saves=self.saves,
            )
        self._is_listening = True
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            self._stop(runner, failure)

    def _stop(self, runner: Runner, failure: BaseException | None) -> None:
        # A late request, also of a thread that is still to end, must not cut what follows.
        self._is_listening = False
        if self._group not in (None, dist.group.WORLD):
            dist.destroy_process_group(self._group)
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook):
                hook.finish_writing()
        if self._signals is None:
            return
        if isinstance(failure, RunStopped):
            self._signals.leave()
            return
        self._signals.restore()
        if failure is None:
            self._signals.repeat()

    def preempt(self) -> None:
        """Ask all processes to save and leave, as SIGTERM does; any thread may call this.

        Nothing happens outside of a training, after its last step, and where processes cannot
        agree on a step, as the log then says.
        """
        self._ask(_PREEMPTED)

    def save_every(self, seconds: float, save: Callable[[Runner], object]) -> bool:
        """Call ``save`` between two steps whenever the main process's clock says so.

        Args:
            seconds: Time between the end of one save, or of another checkpoint, and the next.
            save: Called with the run, on every process after the same step.

        Returns:
            Whether it will be; several processes may be unable to agree on a step. The answer is
            the same on all of them.
        """
        self._save, self._save_every_s = save, seconds
        return self._set_deadline(_SAVE, seconds)

    def end_after(self, seconds: float, then: Literal["end", "requeue"]) -> bool:
        """End training between two steps, once the main process's clock says so.

        Args:
            seconds: From now on.
            then: ``"end"`` as if it were done, ``"requeue"`` as after SIGTERM; a checkpoint is
                saved in both cases.

        Returns:
            Whether it will; see :meth:`save_every`.
        """
        return self._set_deadline(_TIME_UP if then == "end" else _TIME_UP_REQUEUE, seconds)

    def note_saved(self) -> None:
        """Let the clock of :meth:`save_every` begin again."""
        if _SAVE in self._deadlines:
            self._deadlines[_SAVE] = time.monotonic() + self._save_every_s

    def settle(self, runner: Runner) -> None:
        """Act on a request if there is one; every process calls this after a step.

        While gradients are accumulated it waits for the optimizer step that takes them in.

        Raises:
            RunStopped: If the run is to leave; the checkpoint is written.
            EndOfTrainingError: If only the training is to end; likewise.
        """
        if runner.holds_gradients:
            return
        wish = self._agreed()
        for settled in range(wish + 1):  # one by one: a signal may add another at any instant
            self._wishes.discard(settled)
        if wish == _SAVE and self._save is not None:
            self._save(runner)
        elif wish == _TIME_UP:
            self._end_training(runner)
        elif wish in _LEAVING:
            cause, status = _LEAVING[wish]
            runner.logger.warning(
                f"The run was {cause} and leaves after epoch {runner.epoch}, step {runner.iter}, "
                f"with status {status}; {self._saved(runner)}."
            )
            raise RunStopped(status)

    def mark(self, runner: Runner) -> None:
        """Pass one end of a validation; every process comes here.

        Raises:
            RunStopped: If the run is to leave; the checkpoint is written.
            EndOfTrainingError: If only the training is to end; likewise.
        """
        self._steps_left = 1
        if self.pending:
            self.settle(runner)

    def cuts_validation(self, runner: Runner) -> bool:
        """Return whether to skip the rest of a validation: the run leaves at its end.

        Several processes finish it: they agree at its end.
        """
        self._note_deadlines()
        is_leaving = max(self._wishes, default=0) > _SAVE
        return self._group is None and is_leaving and not runner.holds_gradients

    def _agreed(self) -> int:
        """Return the strongest request of all processes, 0 if there is none or none was asked."""
        self._note_deadlines()
        own = max(self._wishes, default=0)
        if self._group is None:
            return own
        self._steps_left -= 1
        if self._steps_left > 0:
            return 0
        now = time.monotonic()
        step_s = max((now - self._exchanged_s) / self._interval, 1e-6)
        wanted = max(1, min(int(_INTERVAL_S / step_s), 2 * self._interval, _MOST_STEPS))
        requests = torch.tensor([own, -wanted])  # all take the least number of steps
        dist.all_reduce(requests, op=dist.ReduceOp.MAX, group=self._group)
        strongest, fewest = requests.tolist()
        self._interval = self._steps_left = -fewest
        self._exchanged_s = now
        return int(strongest)

    def _note_deadlines(self) -> None:
        now = time.monotonic()
        for wish, deadline in self._deadlines.items():
            if now >= deadline:
                self._wishes.add(wish)
                self._deadlines[wish] = now + (self._save_every_s if wish == _SAVE else 0.0)

    def _set_deadline(self, wish: int, seconds: float) -> bool:
        if self._can_agree and mm_dist.is_main_process():
            self._deadlines[wish] = time.monotonic() + seconds
        return self._can_agree

    def _ask(self, wish: int) -> None:
        if self._is_listening and self._can_agree:
            self._wishes.add(wish)

    def _end_training(self, runner: Runner) -> None:
        saved = self._saved(runner)
        runner.logger.warning(
            f"The time is up: training ends after epoch {runner.epoch}, step {runner.iter} of "
            f"{runner.max_iters}; {saved}."
        )
        self.ran_out_of_time = runner.train_loop.stop_training = True
        if isinstance(runner.train_loop, AbstractTrainLoop):  # a custom loop reads the flag
            raise EndOfTrainingError

    def _saved(self, runner: Runner) -> str:
        if not self.saves:
            return "nothing is kept"
        self.saved = path = _save_checkpoint(runner)
        saved = f"saved {path}" if path is not None else "the checkpoints before it are untouched"
        return f"{saved}. resume=True (--resume) continues from there"


def _group_of_cpus(runner: Runner) -> Any:
    """Return a process group whose collectives wait for no device, ``None`` if there is none."""
    if dist.get_backend() == "gloo":
        return dist.group.WORLD
    group, failure = None, ""
    try:
        group = dist.new_group(backend="gloo")
    except (RuntimeError, ValueError, OSError) as error:
        failure = str(error)
    # All or none: one process that cannot talk would leave the others waiting for its answer.
    failures = [one for one in mm_dist.all_gather_object(failure) if one]
    if failures:
        runner.logger.warning(
            f"No gloo group can be made ({failures[0]}): signals save no checkpoint, and "
            "TimeLimitHook and CheckpointHook's minutes have no effect."
        )
        return None
    return group


def _save_checkpoint(runner: Runner) -> Path | None:
    hook = next((one for one in runner.hooks if isinstance(one, CheckpointHook)), None)
    # A run cannot resume from the weights alone.
    if hook is not None and hook.save_optimizer and hook.save_param_scheduler:
        return hook.save_now(runner, and_wait=True)
    if hook is not None:  # its thread may yet write the same file, or name its own as the newest
        hook.settle(runner)
    path = Path(runner.work_dir) / f"iter_{runner.iter}.pth"
    try:
        runner.save_checkpoint(path.parent, path.name)
    except CheckpointWriteError as error:
        runner.logger.error(str(error))  # noqa: TRY400 - it says it all
        return None
    return path
