"""Base of the training loops: steps, validations in between, and exact resume."""

from __future__ import annotations

import time
from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import mm_dist
from mm_runner.checkpoint import rng_state, set_rng_state
from mm_runner.data import BatchFeed, DataPosition
from mm_runner.model import train_step_of
from mm_runner.registry import check_integer

from ._base_loop import BaseLoop, alias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mm_runner.run_view import RunView


class EndOfTrainingError(Exception):
    """Ends the training loop that a step belongs to, in the middle of an epoch too.

    The loop continues with ``after_train``. The rest of the epoch or validation is skipped, with
    the stages after it; a resumed run does it.
    """


class AbstractTrainLoop(BaseLoop):
    """Train step by step, with validations in between.

    A subclass may override ``run``, ``run_epoch`` and ``run_iter`` as in MMEngine. It calls the
    hooks at the usual stages, draws its batches from :attr:`dataloader`, and counts ``epoch`` and
    ``iter``. A checkpoint of such a run resumes after its last step where steps go through the
    ``run_iter`` of this package, else after the last whole epoch; the log says which.

    Args:
        runner: The run: model, optimizer wrapper, hooks.
        dataloader: Training batches.
        max_epochs: Epochs to train.
        max_iters: Steps to train.
        val_begin: First epoch, or step, that is followed by a validation.
        val_interval: Epochs, or steps, between two validations.
        dynamic_intervals: Pairs ``(count, val_interval)``: the interval from that epoch or step on.

    Attributes:
        dataloader: Training batches; another loader that is assigned is used from the next pass on.
        epoch: Number of epochs done.
        iter: Number of steps done; during the hooks after a step, without that step.
        stop_training: Set by a hook to end training after the current epoch or step.
        validated_s: Seconds that validations have taken.
    """

    _epoch = alias("epoch")
    _iter = alias("iter")
    _max_epochs = alias("max_epochs")
    _max_iters = alias("max_iters")
    by_epoch: ClassVar[bool]  # Whether each epoch is a pass over the data; else training is one.

    def __init__(
        self,
        runner: RunView,
        dataloader: Any,
        max_epochs: int,
        max_iters: int,
        val_begin: int,
        val_interval: int,
        dynamic_intervals: Sequence[tuple[int, int]] | None,
    ) -> None:
        check_integer("train_cfg.val_begin", val_begin, least=1)
        check_integer("train_cfg.val_interval", val_interval, least=1)
        for begin, interval in dynamic_intervals or ():
            check_integer("train_cfg.dynamic_intervals", begin, least=1)
            check_integer("train_cfg.dynamic_intervals", interval, least=1)
        self.val_begin = val_begin
        self._intervals = [(0, val_interval), *sorted(dynamic_intervals or ())]
        super().__init__(runner, dataloader)
        self.max_epochs, self.max_iters = max_epochs, max_iters
        self.epoch = self.iter = 0
        self.stop_training, self.validated_s = False, 0.0
        self.batches = BatchFeed(dataloader, runner)
        self._limit: int | None = None
        self._step: Any = None
        self._optim_wrapper: Any = None
        self._has_own_body = any(map(self._is_overridden, ("run", "run_epoch")))
        # During the hooks after a step or an epoch, these are one ahead of the public counters.
        self._epochs_done = self._iters_done = self._batches_done = 0
        self._iters_at_pass_begin = 0
        self._pass_start = DataPosition(samples=0)
        # What is restored when the next pass begins.
        self._resumed: dict[str, Any] | None = None
        self._resumed_rng: dict[str, Any] | None = None
        self._at_pass_begin: dict[str, Any] = {}
        self._rng_before_validation: dict[str, Any] | None = None
        self._validated_at: int | None = None  # the step

    @abstractmethod
    def _data_position(self) -> DataPosition:
        """Return the position in the data after everything that is done."""

    @abstractmethod
    def _train(self) -> None:
        """Train from the current position to the end."""

    def run(self) -> None:
        """Train from :attr:`epoch` and :attr:`iter` to the end."""
        runner, resumed = self.runner, self._resumed
        runner.call_hook("before_train")
        with suppress(EndOfTrainingError):
            # Most checkpoints are written before the validation that follows them.
            is_within = self.by_epoch and resumed and DataPosition(**resumed["position"]).is_begun
            if self._count and not is_within and self._validated_at != self.iter and self._is_due():
                self._validate()
            self._train()
        runner.call_hook("after_train")

    def shorten(self, num_batches: int) -> None:
        """End training after ``num_batches`` and a validation, as a trial of the whole run.

        What depends on :attr:`max_epochs` and :attr:`max_iters`, such as schedules, is unchanged.
        """
        check_integer("num_batches", num_batches, least=1)
        self._limit = num_batches

    def close(self) -> None:
        """End the workers of the training batches."""
        self.batches.close()

    # The position of the loop in a checkpoint.

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training, and the random numbers of this process there.

        Call it between the end of a step and the drawing of the next batch; hooks after a step and
        validations lie there.

        Returns:
            ``epoch`` and ``iter``; ``position``, a :class:`~mm_runner.data.DataPosition` as a dict;
            ``pass``, the generators as the pass over the data began; ``is_validated``, whether the
            validation after these steps is done.
        """
        is_validated = self._validated_at == self._iters_done
        if self._resumed is not None:  # nothing was trained since
            return {**self._resumed, "is_validated": is_validated}
        position = self._data_position()
        to_come = {"generators": self.batches.generator_states()}
        return {
            "epoch": self._epochs_done,
            "iter": self._iters_done,
            "position": position._asdict(),
            "pass": self._at_pass_begin if position.is_begun else to_come,
            "is_validated": is_validated,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the :meth:`state_dict` of another run; the generators are left alone."""
        self._resumed, self._resumed_rng = dict(state), None
        self.epoch = self._epochs_done = state["epoch"]
        self.iter = self._iters_done = state["iter"]
        self._validated_at = self.iter if state.get("is_validated") else None

    def rng_state(self) -> dict[str, Any]:
        """Return the generators that the next step draws from, not those of a validation."""
        if self._resumed is not None and self._resumed_rng is not None:
            return self._resumed_rng
        return self._rng_before_validation or rng_state(self.runner.device)

    def load_rng_state(self, state: dict[str, Any]) -> None:
        """Continue with the generators of :meth:`rng_state`; after :meth:`load_state_dict`."""
        self._resumed_rng = state

    # Passes over the data.

    def enter_stage(self, stage: str) -> None:
        """Count an epoch, or a step, before the hooks of ``stage`` act."""
        if stage == "before_train_epoch":
            if self._has_own_body:  # it may take its steps itself, which nothing stops in between
                self.runner.interruption.settle(self.runner)
            self._begin_pass()
        elif stage == "after_train_epoch" and self.by_epoch:
            self._epochs_done, self._batches_done = self.epoch + 1, 0
            if self._has_own_body:
                self.batches.seek(DataPosition(self._epochs_done, samples=0))
        elif stage == "after_train_iter":
            self._iters_done = self.iter + 1
            if not self._has_own_body:
                self._batches_done = self.batches.batch

    def _begin_pass(self) -> None:
        """Restore the generators as the pass began, before anything of it draws from them."""
        self._step = train_step_of(self.runner.model)
        self._optim_wrapper = self.runner.optim_wrapper
        if self.dataloader is not self.batches.loader:
            self.batches.close()
            self.batches = BatchFeed(self.dataloader, self.runner)
        self._pass_start, resumed = DataPosition(self.epoch, samples=0), self._resumed
        if resumed is not None:
            start = DataPosition(**resumed["position"])
            if self._has_own_body and not self.batches.is_seekable:
                start = DataPosition(start.epoch, samples=0)
            self._pass_start = start
            rng = resumed["pass"].get("rng") if start.is_begun else self._resumed_rng
            if rng:
                set_rng_state(rng, self.runner.device)
            self.batches.set_generator_states(resumed["pass"].get("generators", {}))
        self._note_pass_begin()
        self._batches_done, self._iters_at_pass_begin = self._pass_start.batch, self.iter
        if self._has_own_body:
            self.batches.seek(self._pass_start)
            self._end_resumption()

    def _note_pass_begin(self) -> None:
        self._at_pass_begin = {
            "rng": rng_state(self.runner.device),
            "generators": self.batches.generator_states(),
        }

    def _end_resumption(self) -> None:
        """Set the generators of the checkpoint, if there is one, once the batches have begun."""
        # For a pass that is yet to begin they are set already; its hooks may have drawn since.
        if self._resumed is not None and self._resumed_rng and self._pass_start.is_begun:
            set_rng_state(self._resumed_rng, self.runner.device)
        self._resumed = self._resumed_rng = None

    # Steps.

    def _run_step(self, idx: int, data_batch: Any) -> None:
        """Train on one batch, with the hooks before and after.

        Args:
            idx: Number of the batch in the epoch, counted from 0.
            data_batch: As the loader gave it.
        """
        if self._step is None:  # a body that does not call the hooks before an epoch
            self._begin_pass()
        runner = self.runner
        methods = runner.hooks_list.methods
        mm_dist.mark_iteration(self.iter + 1)
        for act in methods["before_train_iter"]:
            act(runner, batch_idx=idx, data_batch=data_batch)
        outputs = self._step(data_batch, self._optim_wrapper)
        self._iters_done = self.iter + 1
        self._batches_done += 1
        for act in methods["after_train_iter"]:
            act(runner, batch_idx=idx, data_batch=data_batch, outputs=outputs)
        self.iter += 1
        runner.interruption.settle(runner)

    def _step_function(self) -> Callable[..., object]:
        """Return :meth:`run_iter`, or one that counts the batches of an override."""
        run_iter: Callable[..., object] = self.run_iter  # type: ignore[attr-defined]
        return self._run_own_iter if self._is_overridden("run_iter") else run_iter

    def _run_own_iter(self, *arguments: Any) -> None:
        """Let a subclass train on one batch, and count it."""
        self.run_iter(*arguments)  # type: ignore[attr-defined]
        self._iters_done, self._batches_done = self.iter, self.batches.batch
        self.runner.interruption.settle(self.runner)

    def _is_overridden(self, name: str) -> bool:
        method = getattr(type(self), name, None)
        return method is not None and not method.__module__.startswith("mm_runner.")

    # Validations. Training draws the same random numbers with and without one in between.

    @property
    def val_interval(self) -> int:
        """Epochs, or steps, between two validations at present."""
        count = self._count
        return next(interval for begin, interval in reversed(self._intervals) if count >= begin)

    def _decide_current_val_interval(self) -> None:
        """Do nothing, as MMEngine's subclasses call it: ``val_interval`` is always current."""

    @property
    def _count(self) -> int:
        """What validations are scheduled by."""
        return self.epoch if self.by_epoch else self.iter

    @property
    def _last_count(self) -> int:
        """The count that training ends with, which a validation always follows."""
        if self.by_epoch:
            return self.max_epochs if self._limit is None else 1
        return self.max_iters if self._limit is None else min(self._limit, self.max_iters)

    def _is_due(self) -> bool:
        """Return whether a validation follows."""
        count = self._count
        is_scheduled = count >= self.val_begin and count % self.val_interval == 0
        return self.runner.val_loop is not None and (is_scheduled or count == self._last_count)

    def _validate(self) -> None:
        runner = self.runner
        if self._resumed_rng:  # the validation that the stop cut off drew from these
            set_rng_state(self._resumed_rng, runner.device)
        self._rng_before_validation = rng = rng_state(runner.device)
        runner.interruption.settle(runner, at_once=True)
        began_s = time.perf_counter()
        runner.val_loop.run()
        self.validated_s += time.perf_counter() - began_s
        self._rng_before_validation = None
        set_rng_state(rng, runner.device)
        self._validated_at = self._iters_done
