"""Saving and leaving between two steps that all processes agree on."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import mark_latest
from mm_runner.errors import CheckpointWriteError, RunStopped
from mm_runner.hooks import CheckpointHook
from mm_runner.loops import AbstractTrainLoop, EndOfTrainingError

from ._agreement import Agreement, OwnStore, Verdict
from ._sharded import as_sharded
from ._signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mm_runner.runner import Runner

__all__ = ["Interruption"]

# Requests to all processes; the greatest number wins.
_SAVE, _TIME_UP, _TIME_UP_REQUEUE, _PREEMPTED, _INTERRUPTED = 1, 2, 3, 4, 5
_STATUS = {_TIME_UP_REQUEUE: 75, _PREEMPTED: 75, _INTERRUPTED: 130}
_CAUSE = {
    _TIME_UP_REQUEUE: "out of time",
    _PREEMPTED: "preempted",
    _INTERRUPTED: "interrupted",
}
# Waiting for another process that does not answer: as long as schedulers leave a run.
_PATIENCE_S = 60.0


class _Clock:
    """Call ``act``, in a thread, ``seconds`` after the last :meth:`reset`, again and again."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._seconds, self._act = seconds, act
        self._end = time.monotonic() + seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mm_runner-clock", daemon=True)
        self._thread.start()

    def reset(self) -> None:
        self._end = time.monotonic() + self._seconds

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(max(self._end - time.monotonic(), 0.01)):
            if time.monotonic() >= self._end:
                self.reset()
                self._act()


class Interruption:
    """Makes a run save, and leave, between two steps.

    SIGTERM and SIGUSR1 count as a preemption, SIGINT as Ctrl-C; any thread may also ask for the
    former. All processes act on the request of one, after the same step.

    Attributes:
        pending: Whether there is something to settle, never outside of a training. A loop reads it
            once a step::

            if runner.interruption.pending:
                runner.interruption.settle(runner)
        saved: What the run saved as it left; ``None`` if it did not leave, or could not.
        ran_out_of_time: Whether training has ended because :meth:`end_after` was asked for it.
        saves: Whether to save a checkpoint where the run leaves; set to ``False`` for one of which
            nothing is to be kept. Defaults to ``True``.
    """

    def __init__(self) -> None:
        self.pending = self.ran_out_of_time = self._is_listening = False
        self.saves = True
        self.saved: Path | None = None
        self._marks = 0
        self._wishes: set[int] = set()
        self._agreement: Agreement | None = None
        self._signals: StopSignals | None = None
        self._clock: _Clock | None = None
        self._limits: list[_Clock] = []
        self._save: Callable[[Runner], object] | None = None
        self._place: Callable[[], int] = lambda: 0

    @contextmanager
    def listening(self, runner: Runner) -> Iterator[None]:
        """Listen while the block trains; every process must enter it."""
        self._start(runner)
        try:
            yield
            # Another process may still wait for this one's answer.
            mm_dist.barrier()
        except BaseException as error:
            self._stop(runner, error)
            raise
        self._stop(runner, None)

    def _start(self, runner: Runner) -> None:
        self.pending, self._marks, self._wishes, self.saved = False, 0, set(), None
        self.ran_out_of_time = False
        # Places are passed by all processes alike: steps, and both ends of validations.
        self._place = lambda: runner.iter + self._marks
        self._is_listening = True
        if runner.world_size > 1:
            token = [uuid.uuid4().hex]
            mm_dist.broadcast_object_list(token)
            self._agreement = _open_agreement(runner, token[0], self._place, self._note)
        if self._can_agree:  # else a signal means what it meant before
            self._signals = StopSignals(
                lambda number: self._ask(_INTERRUPTED if number == signal.SIGINT else _PREEMPTED),
                runner.logger,
                saves=self.saves,
            )

    def _stop(self, runner: Runner, error: BaseException | None) -> None:
        # A late request, also of a thread that is still to end, must not cut what follows.
        self._is_listening = False
        for thread in (self._clock, self._agreement, *self._limits):
            if thread is not None:
                thread.stop()
        self._clock = self._agreement = self._save = None
        self._limits = []
        self.pending, self._wishes = False, set()
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook):
                hook.finish_writing()
        signals, self._signals = self._signals, None
        if signals is None:
            return
        if isinstance(error, RunStopped):
            signals.leave()
            return
        signals.restore()
        if error is None:
            signals.repeat()

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
        self._save = save
        if self._can_agree and mm_dist.is_main_process():
            self._clock = _Clock(seconds, lambda: self._ask(_SAVE))
        return self._can_agree

    def end_after(self, seconds: float, then: Literal["end", "requeue"]) -> bool:
        """End training between two steps, once the main process's clock says so.

        Args:
            seconds: From now on.
            then: ``"end"`` as if it were done, ``"requeue"`` as after SIGTERM; a checkpoint is
                saved in both cases.

        Returns:
            Whether it will; see :meth:`save_every`.
        """
        wish = _TIME_UP if then == "end" else _TIME_UP_REQUEUE
        if self._can_agree and mm_dist.is_main_process():
            self._limits.append(_Clock(seconds, lambda: self._ask(wish)))
        return self._can_agree

    def note_saved(self) -> None:
        """Let the clock of :meth:`save_every` begin again."""
        if self._clock is not None:
            self._clock.reset()

    def settle(self, runner: Runner) -> None:
        """Act on a pending request if it is due here; every process calls this after a step.

        While gradients are accumulated it waits for the optimizer step that takes them in.

        Raises:
            RunStopped: If the run is to leave; the checkpoint is written.
            EndOfTrainingError: If only the training is to end; likewise.
        """
        verdict = self._decided(runner)
        if verdict.place > self._place() or runner.holds_gradients:
            return
        self.pending = False
        for wish in range(verdict.wish + 1):
            self._wishes.discard(wish)
        if self._wishes:  # a signal came just now: it is kept for the next step
            self.pending = True
        if verdict.wish == _SAVE and self._save is not None:
            self._save(runner)
        if self._agreement is not None:
            self._agreement.close_round()
        if verdict.wish == _TIME_UP:
            self._end_training(runner)
        if verdict.wish in _STATUS:
            status = _STATUS[verdict.wish]
            runner.logger.warning(
                f"The run was {_CAUSE[verdict.wish]} and leaves after epoch {runner.epoch}, step "
                f"{runner.iter}, with status {status}; {self._saved(runner)}."
            )
            raise RunStopped(status)

    def mark(self, runner: Runner) -> None:
        """Pass one end of a validation; every process comes here.

        Raises:
            RunStopped: If the run is to leave; the checkpoint is written.
            EndOfTrainingError: If only the training is to end; likewise.
        """
        self._marks += 1
        if self.pending:
            self.settle(runner)

    def cuts_validation(self, runner: Runner) -> bool:
        """Return whether to skip the rest of a validation: the run leaves at its end."""
        if runner.world_size > 1 and as_sharded(runner.model) is not None:
            return False  # within a batch its ranks wait for each other, and each would stop apart
        verdict = self._decided(runner)
        is_here = verdict.place <= self._place() + 1 and not runner.holds_gradients
        return verdict.wish > _SAVE and is_here

    def _decided(self, runner: Runner) -> Verdict:
        if self._agreement is None:
            return Verdict(self._place(), max(self._wishes, default=0))
        verdict = self._agreement.verdict(_PATIENCE_S)
        if verdict is not None:
            return verdict
        runner.logger.error(
            f"The other processes did not agree on a step within {_PATIENCE_S:.0f} s: leaving "
            "without a checkpoint of this step."
        )
        raise RunStopped(_STATUS[_PREEMPTED])

    @property
    def _can_agree(self) -> bool:
        return self._agreement is not None or mm_dist.get_world_size() == 1

    def _ask(self, wish: int) -> None:
        if not self._is_listening:
            return
        if self._agreement is not None:
            self._agreement.wish(wish)
        elif self._can_agree:  # a save is common work: one process would wait in it for the others
            self._wishes.add(wish)
            self.pending = True

    def _note(self) -> None:
        self.pending = self._is_listening

    def _end_training(self, runner: Runner) -> None:
        saved = self._saved(runner)
        runner.logger.warning(
            f"The time is up: training ends after epoch {runner.epoch}, step {runner.iter} of "
            f"{runner.max_iters}; {saved}."
        )
        self.ran_out_of_time = runner.train_loop.stop_training = True
        if isinstance(runner.train_loop, AbstractTrainLoop):  # one of the user's own reads the flag
            raise EndOfTrainingError

    def _saved(self, runner: Runner) -> str:
        if not self.saves:
            return "nothing is kept"
        self.saved = path = _save_checkpoint(runner)
        saved = f"saved {path}" if path is not None else "the checkpoints before it are untouched"
        return f"{saved}. resume=True (--resume) goes on from there"


def _open_agreement(
    runner: Runner, token: str, place: Callable[[], int], note: Callable[[], None]
) -> Agreement | None:
    try:
        store = OwnStore(token)
    except (OSError, RuntimeError, ValueError, AttributeError) as error:
        reached: Any = error
    else:
        reached = None
    # All or none: one process that cannot talk would leave the others waiting for its answer.
    failures = [one for one in mm_dist.all_gather_object(reached and str(reached)) if one]
    if failures:
        runner.logger.warning(
            f"The processes' store cannot be reached ({failures[0]}): signals save no checkpoint."
        )
        return None
    return Agreement(store, runner.rank, runner.world_size, place, note)


def _save_checkpoint(runner: Runner) -> Path | None:
    hooks = [one for one in runner.hooks if isinstance(one, CheckpointHook)]
    if hooks:  # their threads may yet write the same file, or name theirs as the newest
        hooks[0].settle_all(runner)
    # A run cannot resume from the weights alone.
    whole = [one for one in hooks if one.save_optimizer and one.save_param_scheduler]
    try:
        if whole:
            saved = whole[0].save_now(runner, and_wait=True)
            if saved is not None:  # another one's of the same step may be named
                run_on_main(lambda: mark_latest(saved, runner.work_dir))
            return saved
        path = Path(runner.work_dir) / f"iter_{runner.iter}.pth"
        runner.save_checkpoint(path.parent, path.name)
    except CheckpointWriteError as error:
        runner.logger.error(str(error))  # noqa: TRY400 - it says it all
        return None
    return path
