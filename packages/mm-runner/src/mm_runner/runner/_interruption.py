"""Saving and leaving between two steps that all processes agree on."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

import mm_dist
from mm_runner.errors import CheckpointWriteError, RunStopped
from mm_runner.hooks import CheckpointHook
from mm_runner.loops import AbstractTrainLoop, EndOfTrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from mm_runner.runner import Runner

__all__ = ["Interruption", "StopSignals"]

# Requests to all processes; the greatest number wins.
_TIME_UP, _TIME_UP_REQUEUE, _PREEMPTED, _INTERRUPTED = 1, 2, 3, 4
_LEAVING = {
    _TIME_UP_REQUEUE: ("out of time", 75),
    _PREEMPTED: ("preempted", 75),
    _INTERRUPTED: ("interrupted", 130),
}
# Seconds, and the largest number of steps, between two exchanges of requests.
_INTERVAL_S, _MOST_STEPS = 0.2, 32
# Schedulers and launchers repeat themselves; a process that leaves must not die of it.
_LEAVING_S = 30.0
# Windows lacks SIGUSR1.
_SIGNALS = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGUSR1")]


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
        # When the main process's time is up, and the request that follows.
        self._deadline: tuple[float, int] | None = None
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
        is_due = self._deadline is not None and time.monotonic() >= self._deadline[0]
        return bool(self._wishes or is_due or self._group is not None)

    @contextmanager
    def listening(self, runner: Runner) -> Iterator[None]:
        """Listen while the block trains; every process must enter it."""
        self._reset()
        if runner.world_size > 1:
            self._group = _group_of_cpus(runner)
            self._can_agree = self._group is not None
        signals = StopSignals(
            lambda number: self._ask(_INTERRUPTED if number == signal.SIGINT else _PREEMPTED),
            # Where processes cannot agree, a signal means what it meant before.
            _SIGNALS if self._can_agree else (),
        )
        self._is_listening = True
        try:
            yield
        except RunStopped:
            signals.leave()
            raise
        except BaseException:
            signals.restore()
            raise
        else:
            signals.restore()
            signals.repeat()
        finally:
            # A late request, also of a thread that is still to end, must not cut what follows.
            self._is_listening = False
            if self._group not in (None, dist.group.WORLD):
                dist.destroy_process_group(self._group)

    def preempt(self) -> None:
        """Ask all processes to save and leave, as SIGTERM does; any thread may call this.

        Nothing happens outside of a training, after its last step, and where processes cannot
        agree on a step, as the log then says.
        """
        self._ask(_PREEMPTED)

    def end_after(self, seconds: float, then: Literal["end", "requeue"]) -> bool:
        """End training between two steps, once the main process's clock says so.

        Args:
            seconds: From now on.
            then: ``"end"`` as if it were done, ``"requeue"`` as after SIGTERM; a checkpoint is
                saved in both cases.

        Returns:
            Whether it will; several processes may be unable to agree on a step. The answer is
            the same on all of them.
        """
        if self._can_agree and mm_dist.is_main_process():
            wish = _TIME_UP if then == "end" else _TIME_UP_REQUEUE
            self._deadline = time.monotonic() + seconds, wish
        return self._can_agree

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
        self._wishes.discard(wish)
        if wish == _TIME_UP:
            saved = self._save_and_say(runner)
            runner.logger.warning(
                f"The time is up: training ends after epoch {runner.epoch}, step {runner.iter} of "
                f"{runner.max_iters}; {saved}."
            )
            self.ran_out_of_time = runner.train_loop.stop_training = True
            if isinstance(runner.train_loop, AbstractTrainLoop):  # a custom loop reads the flag
                raise EndOfTrainingError
        elif wish in _LEAVING:
            cause, status = _LEAVING[wish]
            runner.logger.warning(
                f"The run was {cause} and leaves after epoch {runner.epoch}, step {runner.iter}, "
                f"with status {status}; {self._save_and_say(runner)}."
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
        return self._group is None and self._own_wish() > 0 and not runner.holds_gradients

    def _agreed(self) -> int:
        """Return the strongest request of all processes, 0 if there is none or none was asked."""
        own = self._own_wish()
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

    def _own_wish(self) -> int:
        if self._deadline is not None and time.monotonic() >= self._deadline[0]:
            self._wishes.add(self._deadline[1])
        return max(self._wishes, default=0)

    def _ask(self, wish: int) -> None:
        if self._is_listening and self._can_agree:
            self._wishes.add(wish)

    def _save_and_say(self, runner: Runner) -> str:
        if not self.saves:
            return "nothing is kept"
        self.saved = path = _save_checkpoint(runner)
        saved = f"saved {path}" if path is not None else "the checkpoints before it are untouched"
        return f"{saved}. resume=True (--resume) continues from there"


class StopSignals:
    """Handles signals on the main thread; elsewhere it does nothing.

    A handler that was there before is called too, but an exit that it asks for waits for the
    checkpoint. A signal that was ignored, or that code of another language handles, is left alone.
    The second SIGINT is left to the system, which ends the process wherever it is.

    Args:
        on_stop: Called with the signal's number, between two instructions of the main thread.
        numbers: The signals.
    """

    def __init__(self, on_stop: Callable[[int], None], numbers: Any = _SIGNALS) -> None:
        self._on_stop = on_stop
        self._previous: dict[int, Any] = {}
        self._pid = os.getpid()
        self._left_at: float | None = None
        self._received: int | None = None
        if threading.current_thread() is not threading.main_thread():
            return
        for number in filter(None, numbers):
            previous = signal.getsignal(number)
            if previous not in (None, signal.SIG_IGN):
                self._previous[number] = previous
                signal.signal(number, self._handle)

    def restore(self) -> None:
        """Put back the handlers that were there before."""
        for number, previous in self._previous.items():
            # Handlers that somebody else has set meanwhile stay.
            if signal.getsignal(number) in (self._handle, signal.SIG_DFL):
                signal.signal(number, previous)

    def repeat(self) -> None:
        """Send a signal that came after the last step again, to the restored handler."""
        if self._received is not None:
            os.kill(self._pid, self._received)

    def leave(self) -> None:
        """Put back that of SIGINT, and disregard the others while the process ends."""
        self._left_at = time.monotonic()
        # While the interpreter ends, Python's handlers are gone, and a signal would end the process
        # with a status of its own: srun --kill-on-bad-exit sends one as soon as a rank has left.
        atexit.register(self._ignore)
        if signal.SIGINT in self._previous:
            signal.signal(signal.SIGINT, self._previous.pop(signal.SIGINT))

    def _ignore(self) -> None:
        for number in self._previous:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # Of a process that was forked while a run trains: it has no checkpoint to save.
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        is_own = signal.getsignal(number) == self._handle
        if self._left_at is not None and is_own:
            if time.monotonic() > self._left_at + _LEAVING_S:  # the process did not end after all
                self.restore()
                os.kill(self._pid, number)
            return
        if self._left_at is None:
            self._received = number
            if number == signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.write(2, b"\nCtrl-C: leaving after this step. Once more: leaving at once.\n")
            self._on_stop(number)
        # Else a later run of this process handles it, and calls the handler that it found.
        previous = self._previous.get(number)
        if callable(previous) and previous is not signal.default_int_handler:
            with suppress(SystemExit, KeyboardInterrupt):  # this run leaves by itself
                previous(number, frame)


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
            "TimeLimitHook has no effect."
        )
        return None
    return group


def _save_checkpoint(runner: Runner) -> Path | None:
    hook = next((one for one in runner.hooks if isinstance(one, CheckpointHook)), None)
    # A run cannot resume from the weights alone.
    if hook is not None and hook.save_optimizer and hook.save_param_scheduler:
        return hook.save_now(runner)
    if hook is not None:  # its thread may yet write the same file, or name its own as the newest
        hook.settle(runner)
    path = Path(runner.work_dir) / f"iter_{runner.iter}.pth"
    try:
        runner.save_checkpoint(path.parent, path.name)
    except CheckpointWriteError as error:
        runner.logger.error(str(error))  # noqa: TRY400 - it says it all
        return None
    return path
