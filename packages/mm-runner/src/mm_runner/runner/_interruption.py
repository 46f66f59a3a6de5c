"""Stops that all processes agree on: save and leave after the same step."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

import mm_dist
from mm_runner.errors import RunStopped
from mm_runner.hooks import CheckpointHook
from mm_runner.loops import EndOfTrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from mm_runner.run_view import RunView

# Requests to all processes; the greatest number wins.
_TIME_UP, _TIME_UP_REQUEUE, _PREEMPTED, _INTERRUPTED = 1, 2, 3, 4
_LEAVING = {
    _TIME_UP_REQUEUE: ("out of time", 75),
    _PREEMPTED: ("preempted", 75),
    _INTERRUPTED: ("interrupted", 130),
}
# Seconds, and the largest number of steps, between two exchanges of requests.
_INTERVAL_S, _MOST_STEPS = 0.2, 32
# Windows lacks SIGUSR1.
_SIGNALS = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGUSR1")]


class Interruption:
    """Makes a run save and stop between two steps.

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
        self._wish = 0  # of this process
        # When the main process's time is up, and the request that follows.
        self._deadline: tuple[float, int] | None = None
        self._group: Any = None  # of CPUs: its collectives wait for no device
        self._exchanged_s, self._interval, self._steps_left = time.monotonic(), 1, 1

    @property
    def pending(self) -> bool:
        """Whether there may be a request to settle; never outside of a training."""
        return self._is_listening and (self._group is not None or self._own_wish() > 0)

    @contextmanager
    def listening(self, runner: RunView) -> Iterator[None]:
        """Listen while the block trains; every process must enter it."""
        self._reset()
        if runner.world_size > 1:
            is_gloo = dist.get_backend() == "gloo"
            self._group = dist.group.WORLD if is_gloo else dist.new_group(backend="gloo")
        self._is_listening = True
        try:
            with StopSignals(self._ask):
                yield
        finally:
            # A late request, also of a thread that is still to end, must not cut what follows.
            self._is_listening = False
            if self._group not in (None, dist.group.WORLD):
                dist.destroy_process_group(self._group)

    def preempt(self) -> None:
        """Ask all processes to save and leave, as SIGTERM does; any thread may call this.

        Nothing happens outside of a training, and after its last step.
        """
        self._ask(_PREEMPTED)

    def end_after(self, seconds: float, then: Literal["end", "requeue"]) -> None:
        """End training between two steps, once the main process's clock says so.

        Args:
            seconds: From now on.
            then: ``"end"`` as if it were done, ``"requeue"`` as after SIGTERM; a checkpoint is
                saved in both cases.
        """
        if mm_dist.is_main_process():
            wish = _TIME_UP if then == "end" else _TIME_UP_REQUEUE
            self._deadline = time.monotonic() + seconds, wish

    def settle(self, runner: RunView, *, at_once: bool = False) -> None:
        """Act on a request if there is one; every process calls this after a step.

        While gradients are accumulated it waits for the optimizer step that takes them in. With
        ``at_once`` processes exchange requests now, as before and after a validation.

        Raises:
            RunStopped: If the run is to leave; the checkpoint is written.
            EndOfTrainingError: If only the training is to end; the checkpoint is written.
        """
        if at_once:
            self._steps_left = 1
        if not self.pending or runner.holds_gradients:
            return
        wish = self._agreed()
        if wish:
            self._wish = 0
        if wish == _TIME_UP:
            saved = self._save(runner)
            runner.logger.warning(
                f"The time is up: training ends after epoch {runner.epoch}, step {runner.iter} of "
                f"{runner.max_iters}; {saved}."
            )
            self.ran_out_of_time = runner.train_loop.stop_training = True
            raise EndOfTrainingError
        if wish in _LEAVING:
            cause, status = _LEAVING[wish]
            runner.logger.warning(
                f"The run was {cause} and leaves after epoch {runner.epoch}, step {runner.iter}, "
                f"with status {status}; {self._save(runner)}."
            )
            raise RunStopped(status)

    def cuts_validation(self, runner: RunView) -> bool:
        """Return whether to skip the rest of a validation: the run leaves at its end.

        Several processes finish it: they agree at its end.
        """
        return self._group is None and self.pending and not runner.holds_gradients

    def _agreed(self) -> int:
        """Return the strongest request of all processes; 0 if none, or between exchanges."""
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
            self._ask(self._deadline[1])
        return self._wish

    def _ask(self, wish: int) -> None:
        if self._is_listening:
            self._wish = max(self._wish, wish)

    def _save(self, runner: RunView) -> str:
        """Save a checkpoint, and describe the result for the log."""
        if not self.saves:
            return "nothing is kept"
        hooks = (one for one in runner.hooks if isinstance(one, CheckpointHook))
        self.saved = next(hooks, CheckpointHook()).save_now(runner)
        saved = f"saved {self.saved}" if self.saved else "the checkpoints before it are untouched"
        return f"{saved}. resume=True (--resume) continues from there"


class StopSignals:
    """Call ``ask`` with a request for each signal that arrives within the block.

    Off the main thread nothing is handled. A handler that was there before is called too, but an
    exit that it asks for waits for the checkpoint. Ignored signals stay ignored, the second SIGINT
    ends the process at once, and a signal after the last step is sent again after the block.
    """

    def __init__(self, ask: Callable[[int], None]) -> None:
        self._ask = ask
        self._pid, self._received = os.getpid(), 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in filter(None, _SIGNALS):
            previous = signal.getsignal(number)
            if previous not in (None, signal.SIG_IGN):
                self._previous[number] = previous
                signal.signal(number, self._handle)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_leaving = kind is not None and issubclass(kind, RunStopped)
        for number, previous in self._previous.items():
            # Launchers repeat themselves, and srun --kill-on-bad-exit sends a signal as soon as one
            # rank has left: it must not change the status of a process that ends.
            is_ignored = is_leaving and number != signal.SIGINT
            # Handlers that other code has set meanwhile stay.
            if signal.getsignal(number) in (self._handle, signal.SIG_DFL):
                signal.signal(number, signal.SIG_IGN if is_ignored else previous)
        if kind is None and self._received:
            os.kill(self._pid, self._received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a process forked in the block has no checkpoint to save
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self._received = number
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            os.write(2, b"\nCtrl-C: leaving after this step. Once more: leaving at once.\n")
        self._ask(_INTERRUPTED if number == signal.SIGINT else _PREEMPTED)
        previous = self._previous[number]
        if callable(previous) and previous is not signal.default_int_handler:
            with suppress(SystemExit, KeyboardInterrupt):  # this run leaves by itself
                previous(number, frame)
