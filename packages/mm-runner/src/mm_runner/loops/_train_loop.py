"""What training loops have in common: steps, validations in between, and going on exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import is_validated, mark_validated, rng_state, set_rng_state
from mm_runner.errors import CheckpointWriteError, ConfigError
from mm_runner.hooks import Hook
from mm_runner.model import train_step_of
from mm_runner.optim import named_schedulers

from ._ending import EndOfTrainingError
from ._mmengine_names import MMEngineNames
from ._own_bodies import OwnBody, overridden
from ._sanity import rehearse_validation
from ._train_loader import TrainLoader
from ._validation_schedule import check_count, check_positive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.utils.data import DataLoader

    from mm_runner.data import DataPosition

    from ._resumption import Resumption
    from ._validation_schedule import ValidationSchedule

__all__ = ["AbstractTrainLoop"]


class AbstractTrainLoop(TrainLoader, MMEngineNames, ABC):
    """Trains step by step.

    A subclass may override ``run``, ``run_epoch`` and ``run_iter`` in MMEngine's way. What is its
    own lets hooks act at the usual stages, draws batches from :attr:`dataloader`, and counts
    :attr:`epoch` and :attr:`iter`; what a checkpoint says of the data, and leaving between two
    steps, are seen to around it. Batches that were drawn by the end of a step count as trained on.
    Of batches from elsewhere a warning is logged: no checkpoint knows their position.

    Args:
        runner: The run: model, optimizer wrapper, hooks.
        dataloader: Training batches.
        schedule: When a validation is due.
        max_epochs: Epochs to train.
        max_iters: Steps to train.
        sanity_val_batches: Batches that are validated before training begins, to see that it works.

    Attributes:
        is_drawing: Whether a body of ours goes through them.
        epoch: Number of epochs done.
        iter: Number of steps done; during the hooks after a step, without that step.
        stop_training: Set by a hook to end training after the present epoch or step.
    """

    # Whether each epoch is a pass over the data; else all of training is one epoch.
    _by_epoch: ClassVar[bool]

    def __init__(
        self,
        runner: Any,
        dataloader: DataLoader[Any],
        schedule: ValidationSchedule,
        *,
        max_epochs: int,
        max_iters: int,
        sanity_val_batches: int = 0,
    ) -> None:
        check_count("sanity_val_batches", sanity_val_batches)
        self.runner = runner
        own = overridden(self)
        self._own = OwnBody(self, by_epoch=self._by_epoch) if own else None
        if "run" in own:
            vars(self)["run"] = self._run_own
        self._is_drawn_by_own = bool(own & {"run", "run_epoch"})
        vars(self).pop("_dataloader", None)  # a subclass may have put it there already
        self.dataloader = dataloader
        self.max_epochs, self.max_iters = max_epochs, max_iters
        self.epoch = self.iter = 0
        self.stop_training = False
        self.batches = self._batches_of(dataloader)
        self._schedule = schedule
        self._sanity_val_batches = sanity_val_batches
        self._has_rehearsed = False  # a run() of a subclass's own may call ours
        self._limit: int | None = None
        self._step: Any = None
        self._before_step: Any = None
        self._after_step: Any = None
        self._is_steady = False
        # Whether all steps so far were on batches that were drawn from this loop.
        self._knows_place = True
        # During the hooks after a step or an epoch, these are one ahead of what the loop counts.
        self._epochs_done = self._iters_done = self._batches_done = 0
        self._resumption: Resumption | None = None
        self._at_pass_begin = {}
        self._before_validation: dict[str, Any] | None = None  # the generators
        self._validated_at: int | None = None  # the step

    @property
    def val_begin(self) -> int:
        """The first epoch, or step, that is followed by a validation."""
        return self._schedule.begin

    @property
    def val_interval(self) -> int:
        """Epochs, or steps, between two validations at present."""
        return self._schedule.interval_at(self._count)

    @property
    @abstractmethod
    def _count(self) -> int:
        """What validations are scheduled by."""

    @property
    @abstractmethod
    def _last_count(self) -> int:
        """The count that training ends with."""

    @abstractmethod
    def _data_position(self) -> DataPosition:
        """Return where the run is in its data, with everything done that is done."""

    @abstractmethod
    def position_after(self, epoch: int, iteration: int) -> DataPosition:
        """Return where the data are after so many whole epochs and steps, of an MMEngine run."""

    @abstractmethod
    def _train(self) -> None:
        """Train from where the run is to the end."""

    def run(self) -> None:
        """Train from :attr:`epoch` and :attr:`iter` to the end."""
        runner = self.runner
        with self._watching():
            self._rehearse_validation()
            runner.call_hook("before_train")
            self._begin_steps()
            with suppress(EndOfTrainingError):
                if self._is_at_validation() and self._is_due() and self._must_validate_again():
                    self._validate()
                self._train()
            runner.call_hook("after_train")

    def _run_own(self) -> Any:
        """Do what a subclass's ``run`` does, and around it what it does not know of."""
        with self._watching():
            self._rehearse_validation()
            return type(self).run(self)

    def _watching(self) -> AbstractContextManager[None]:
        return nullcontext() if self._own is None else self._own.watching()

    def _rehearse_validation(self) -> None:
        has_rehearsed, self._has_rehearsed = self._has_rehearsed, True
        is_at_begin = self._resumption is None and self.iter == 0
        if self._sanity_val_batches and is_at_begin and not has_rehearsed:
            rehearse_validation(self.runner, self._sanity_val_batches)

    def shorten(self, num_batches: int) -> None:
        """Let training end after so many batches, and a validation, to see that all of it works.

        What goes by :attr:`max_epochs` and :attr:`max_iters`, such as schedules, still does.
        """
        check_positive("num_batches", num_batches)
        self._limit = num_batches
        self._schedule.last = self._last_count

    def close(self) -> None:
        """End the workers of the training batches; what is left of a stopped pass is dropped."""
        self._close_batches()

    # A checkpoint of the run: what this loop knows of it.

    def state_dict(self) -> dict[str, Any]:
        """Return where training is, and this process's random numbers at that point.

        It may be asked for at any time from the end of a step to the drawing of the next batch,
        also by a hook, and in a validation.

        Returns:
            ``epoch`` and ``iter``; ``data``, a :class:`~mm_runner.data.DataPosition` as a dict;
            ``rng``, the generators; ``pass``, the generators as the pass over the data began;
            ``is_validated``, whether what follows these steps has been validated already.
        """
        is_validated = self._validated_at == self._iters_done
        if self._resumption is not None:  # nothing was trained since
            return {**self._resumption.state, "is_validated": is_validated}
        position = self._data_position()._replace(order=self.batches.order)
        to_come = {"generators": self.batches.generator_states()}
        return {
            "epoch": self._epochs_done,
            "iter": self._iters_done,
            "data": position._asdict(),
            "rng": self._before_validation or rng_state(self.runner.device),
            "pass": self._at_pass_begin if position.is_begun else to_come,
            "is_validated": is_validated,
        }

    def resume(self, resumption: Resumption) -> None:
        """Go on from another run's :meth:`state_dict`."""
        self._resumption = resumption
        self.batches.use_order(resumption.position.order)
        self.epoch = self._epochs_done = resumption.state["epoch"]
        self.iter = self._iters_done = resumption.state["iter"]
        self._validated_at = self.iter if resumption.state.get("is_validated") else None

    def begin_at(self, epoch: int, iteration: int) -> None:
        """Let :meth:`run` begin after so many, and forget what a training before it has left."""
        self.batches.rewind()
        if self._own is not None:
            self._own = OwnBody(self, by_epoch=self._by_epoch)
        self.epoch = self._epochs_done = epoch
        self.iter = self._iters_done = iteration
        self._batches_done, self._knows_place = 0, True
        self.stop_training = self.is_drawing = self._has_rehearsed = False
        self._resumption = self._step = self._before_validation = self._validated_at = None

    # The parts of a loop.

    @override
    def _open_own(self) -> Iterator[Any]:
        assert self._own is not None
        return self._own.open()

    @abstractmethod
    def _open_pass(self, start: DataPosition, *, endless: bool) -> Iterator[Any]:
        """Begin the pass that ``start`` is in, there, and if ``endless`` those that follow."""

    def _begin_pass(self) -> Resumption | None:
        """Prepare the random numbers of a pass; before anything of it draws some.

        Returns:
            Where in the pass to begin, if this run goes on from another one.
        """
        self._end_validation()
        if self._own is not None and self._resumption is not None:
            self._own.validate_again()
        resumption, self._resumption = self._resumption, None
        if resumption is not None:
            resumption.restore_begin(self.batches, self.runner.device)
        self._note_begin()
        return resumption

    def _note_begin(self) -> None:
        self._at_pass_begin = {
            "rng": rng_state(self.runner.device),
            "generators": self.batches.generator_states(),
        }

    def _go_on(self, batches: Iterator[Any], resumption: Resumption | None) -> Iterator[Any]:
        """Return ``batches`` ready to train on: the step before them ended just so."""
        if self._step is None:  # run() is a subclass's own
            self._begin_steps()
        if resumption is None:
            return batches
        return resumption.go_on(self.runner, batches, self._step)

    def renew_hooks(self) -> None:
        """Let hooks act in steps that were registered since training began."""
        if self._after_step is not None:
            self._collect_hooks()

    def renew_step(self) -> None:
        """Train the model that is the run's now, if another one was when training began."""
        if self._step is None:
            return
        try:
            self._step = train_step_of(self.runner.model)
        except ConfigError:  # it may be there to validate only, or at the end
            self._step = self._late_step

    def _late_step(self, *batch: Any) -> Any:
        return train_step_of(self.runner.model)(*batch)

    @property
    def is_validating(self) -> bool:
        """Whether a validation is under way."""
        return self._before_validation is not None

    def _begin_steps(self) -> None:
        self._collect_hooks()
        self._step = train_step_of(self.runner.model)

    def _collect_hooks(self) -> None:
        self._before_step = self.runner.step_hooks("before_train_iter")
        self._after_step = self.runner.step_hooks("after_train_iter")

    def _run_step(self, index: int, batch: Any) -> None:
        """Train on one batch, with the hooks before and after."""
        runner = self.runner
        if self._step is None:
            self._begin_steps()
        mm_dist.mark_iteration(self.iter + 1)
        for act in self._before_step:
            act(runner, index, batch)
        outputs = self._step(batch, runner.optim_wrapper)
        self._iters_done, self._batches_done = self.iter + 1, index + 1
        for act in self._after_step:
            act(runner, index, batch, outputs)
        self.iter += 1
        if not self._is_steady:  # kernels are compiled: dist_cfg's steady_timeout may hold
            mm_dist.enter_steady_state()
            self._is_steady = True
        if runner.interruption.pending:
            runner.interruption.settle(runner)

    def _stepping(self, run_iter: Callable[..., object]) -> Callable[..., object]:
        """Return what trains on one batch: :meth:`run_iter`, also if a subclass overrides it.

        Args:
            run_iter: Of the class that calls it.
        """
        own = self.run_iter  # type: ignore[attr-defined]
        return own if getattr(own, "__func__", None) is run_iter else self._run_own_step

    def _run_own_step(self, *arguments: Any) -> None:
        """Let a subclass train on one batch, and do what :meth:`_run_step` does besides."""
        mm_dist.mark_iteration(self.iter + 1)
        self.run_iter(*arguments)  # type: ignore[attr-defined]
        # It may have left out the batch, or its hooks.
        self._iters_done, self._batches_done = self.iter, self.batches.batch
        self._end_step()

    def _end_step(self) -> None:
        """Do what follows a step; :meth:`_run_step` does the same, and spares the call."""
        if not self._is_steady:
            mm_dist.enter_steady_state()
            self._is_steady = True
        if self.runner.interruption.pending:
            self.runner.interruption.settle(self.runner)

    def _is_at_validation(self) -> bool:
        """Tell whether the run goes on right after what is followed by a validation."""
        return self._count > 0

    def _must_validate_again(self) -> bool:
        """Tell whether a run that goes on needs the validation after its checkpoint.

        Most are written before it, and know nothing of what hooks or schedules learned from it.
        """
        if self._validated_at == self.iter:
            return False  # as of a run by steps that has come to its end
        return self._learns_from_validations() or not self._is_validated(self._count)

    def _learns_from_validations(self) -> bool:
        runner = self.runner
        schedules = (
            one for group in named_schedulers(runner.param_schedulers).values() for one in group
        )
        return any(map(_learns_from_metrics, runner.hooks)) or any(
            getattr(schedule, "need_val_args", False) for schedule in schedules
        )

    def _is_validated(self, count: int, **words: Any) -> bool:
        runner = self.runner
        return run_on_main(lambda: is_validated(runner.work_dir, count, runner.seed, **words))

    def _mark_validated(self, count: int, **words: Any) -> None:
        runner = self.runner
        if not mm_dist.is_main_process():  # a run() of a subclass may validate there alone
            return
        try:
            mark_validated(runner.work_dir, count, runner.seed, **words)
        except CheckpointWriteError as error:
            runner.logger.warning(f"{error} A run that resumes here validates once more.")

    def _is_due(self) -> bool:
        return self.runner.val_loop is not None and self._schedule.is_due(self._count)

    def _validate(self) -> None:
        runner, count = self.runner, self._count
        self._begin_validation()
        runner.interruption.mark(runner)
        runner.val_loop.run()
        self._end_validation()
        self._mark_validated(count)
        self._validated_at = self._iters_done

    # Training draws the same random numbers with and without a validation in between.

    def _begin_validation(self) -> None:
        if self._before_validation is None:
            self._before_validation = rng_state(self.runner.device)

    def _end_validation(self) -> None:
        if self._before_validation is not None:
            set_rng_state(self._before_validation, self.runner.device)
            self._before_validation = None


def _learns_from_metrics(hook: Hook) -> bool:
    keeps_state = type(hook).state_dict is not Hook.state_dict
    return keeps_state and type(hook).acts_at("after_val_epoch")
