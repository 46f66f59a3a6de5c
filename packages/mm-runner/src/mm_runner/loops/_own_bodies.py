"""What a training loop does around a ``run``, ``run_epoch`` or ``run_iter`` of a subclass's own."""

from __future__ import annotations

from contextlib import contextmanager
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from typing_extensions import override

import mm_dist
from mm_runner.data import DataPosition
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook

from ._counted_loader import beside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._resumption import Resumption
    from ._train_loop import AbstractTrainLoop

__all__ = ["OwnBody", "overridden"]


def overridden(loop: object) -> frozenset[str]:
    """Return which of ``run``, ``run_epoch`` and ``run_iter`` a subclass of our loops overrides."""
    ours = __name__.rpartition(".")[0]
    found = {name: getattr(type(loop), name, None) for name in ("run", "run_epoch", "run_iter")}
    return frozenset(
        name
        for name, method in found.items()
        if method is not None and not getattr(method, "__module__", "").startswith(ours)
    )


class OwnBody:
    """Keeps the accounts of a loop while a body of a subclass's own trains.

    Such a body lets hooks act at the usual stages, draws its batches from the loop's
    ``dataloader``, or its ``dataloader_iterator``, and counts ``epoch`` and ``iter`` by itself. All
    that a checkpoint says follows from these: a stage is noted before other hooks act at it.

    Args:
        loop: Whose bodies these are.
        by_epoch: Whether each epoch is a pass over the data; else all of training is one epoch.
    """

    def __init__(self, loop: AbstractTrainLoop, *, by_epoch: bool) -> None:
        self._loop, self._by_epoch = loop, by_epoch
        self._is_validating = False
        self._is_watching = self._is_in_epoch = False
        # Kept until the first step: a body may look at the first batch, and begin once more.
        self._resumption: Resumption | None = None
        self._start = DataPosition(samples=0)
        self._has_opened = False
        # What stands for the pass under way, until its end was drawn.
        self._live: object | None = None
        self._num_steps = 0  # of the pass
        self._is_behind_step = False
        self._epoch_before = 0
        self._iter_before: int | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Be told the stages of the run in the block."""
        if self._is_watching:  # a run() of a subclass that goes on to ours
            yield
            return
        runner = self._loop.runner
        stages = next((one for one in runner.hooks if isinstance(one, _Stages)), None)
        if stages is None:
            stages = _Stages()
            runner.hooks_list.add_first(stages)
        stages.body, self._is_watching = self, True
        try:
            yield
        except StopIteration as error:
            if not self._by_epoch or not self._start.batch:
                raise
            raise ConfigError(_too_few(self._loop, self._start.batch)) from error
        finally:
            stages.body, self._is_watching = None, False
            vars(self._loop).pop("run_iter", None)

    # The batches.

    def open(self, *, endless: bool = False) -> Iterator[Any]:
        """Return the batches that a body draws next: of training, or for a look beside it.

        Args:
            endless: Whether pass follows pass.
        """
        loop = self._loop
        if not self._is_training_pass():
            return beside(loop._given_loader)  # noqa: SLF001
        if not self._is_in_epoch:
            self._begin_epoch()
        if self._is_over():
            self._start, self._resumption = DataPosition(loop.batches.epoch + 1, samples=0), None
            loop._note_begin()  # noqa: SLF001 - two halves of one thing
        loop._take_loader(self._resumption)  # noqa: SLF001
        self._number_steps()
        self._live = live = object()
        self._num_steps, self._has_opened = 0, True
        return self._counted(loop._open_pass(self._start, endless=endless), live)  # noqa: SLF001

    def _is_training_pass(self) -> bool:
        """Tell whether what is drawn now is trained on; a hook may go through the data, too."""
        if not self._is_watching or self._loop.is_drawing:
            return False
        is_open = self._has_opened if self._by_epoch else self._live is not None
        if self._iter_before is not None and is_open and self._loop.batches.feed.num_given:
            return False  # the step under way has its batch
        if self._by_epoch:
            return self._is_in_epoch and not self._num_steps
        return self._live is None or not self._num_steps

    def _is_over(self) -> bool:
        """Tell whether the next pass begins, and not once more one that was only looked at."""
        if self._by_epoch or not self._has_opened or self._live is not None:
            return False
        return self._num_steps > 0 or not self._loop.batches.feed.num_given

    def _counted(self, batches: Iterator[Any], live: object) -> Iterator[Any]:
        loop, resumption = self._loop, self._resumption
        num_repeated = 0 if resumption is None else self._num_passed_over(resumption)
        for batch in loop._go_on(batches, resumption):  # noqa: SLF001
            before = loop.iter
            mm_dist.mark_iteration(before + 1)
            yield batch
            while num_repeated > 0 and not self._num_steps and loop.iter == before:
                num_repeated -= 1
                yield batch
            num_repeated = 0
            if loop.iter > before and not self._is_behind_step:
                self._note_step()  # its hooks were not called
            self._pass_between_steps()
        if self._live is live:
            self._live = None

    def _num_passed_over(self, resumption: Resumption) -> int:
        """Return how many batches a resumed run() of MMEngine's kind draws to be where it was.

        It draws one for each step that was done. As the run is there already, it gets the next
        batch each time; unless each step took several batches, which is no such run.
        """
        position, steps = resumption.position, resumption.state["iter"]
        if self._by_epoch:
            return 0
        length = position.num_batches or self._loop.batches.length or 0
        took_more = position.epoch * length + position.batch > steps
        # Of another number of processes the position is reckoned anew, and the steps are not.
        return 0 if took_more and resumption.state["rng"] else steps

    def _number_steps(self) -> None:
        """Let ``run_iter`` count on in an epoch that is resumed in its middle."""
        loop = self._loop
        vars(loop).pop("run_iter", None)
        first = self._start.batch if self._by_epoch else 0
        if not first:
            return
        run_iter: Any = loop.run_iter  # type: ignore[attr-defined]
        place, name = _index_of(run_iter)

        def numbered(*arguments: Any, **named: Any) -> Any:
            if _is_number(named.get(name)):
                named[name] += first
            elif len(arguments) > place and _is_number(arguments[place]):
                number = arguments[place] + first
                arguments = (*arguments[:place], number, *arguments[place + 1 :])
            return run_iter(*arguments, **named)

        vars(loop)["run_iter"] = numbered

    def _pass_between_steps(self) -> None:
        if not self._is_behind_step:
            return
        self._is_behind_step = False
        loop = self._loop
        self._sync()
        loop._end_validation()  # noqa: SLF001
        loop._end_step()  # noqa: SLF001

    # The stages, before other hooks act.

    def begin_epoch(self) -> None:
        """Note ``before_train_epoch``."""
        if not self._loop.is_drawing:
            self._pass_between_steps()  # of an epoch that has drawn one batch only
        # In a loop over steps a body may call each pass an epoch; the data go on.
        is_first = self._by_epoch or not self._is_in_epoch
        if is_first and not self._loop.is_drawing:
            self._sync()
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        loop = self._loop
        self._resumption = resumption = loop._begin_pass()  # noqa: SLF001
        self._start = resumption.position if resumption else DataPosition(loop.epoch, samples=0)
        self._is_in_epoch, self._epoch_before = True, loop.epoch
        self._live, self._has_opened, self._num_steps = None, False, 0
        loop._batches_done = self._start.batch  # noqa: SLF001

    def begin_step(self) -> None:
        """Note ``before_train_iter``."""
        loop = self._loop
        if self._live is None and not loop.is_drawing:  # no draw tells of the end of a step
            self._pass_between_steps()
        if not loop.is_drawing:
            if loop._resumption is not None:  # noqa: SLF001 - its batches are from elsewhere
                loop._begin_pass()  # noqa: SLF001
            loop._end_validation()  # noqa: SLF001 - the batch may have been drawn before it
        self._iter_before = loop._iters_done = loop.iter  # noqa: SLF001

    def end_step(self) -> None:
        """Note ``after_train_iter``: its hooks may save, with the step."""
        loop = self._loop
        before = loop.iter if self._iter_before is None else self._iter_before
        self._iter_before = None
        self._note_step()
        loop._iters_done = before + 1  # noqa: SLF001

    def _note_step(self) -> None:
        loop = self._loop
        self._num_steps += 1
        # A body that draws ahead reaches the end of the pass before its last step.
        is_drawn = self._has_opened and self._num_steps <= loop.batches.feed.num_given
        is_known = loop.is_drawing or self._live is not None or is_drawn
        if not is_known and loop._knows_place:  # noqa: SLF001
            loop._knows_place = False  # noqa: SLF001
            loop.runner.logger.warning(_unknown(loop, by_epoch=self._by_epoch))
        self._is_behind_step = True
        self._resumption = loop._resumption = None  # noqa: SLF001
        is_counted = loop._knows_place or loop.is_drawing  # noqa: SLF001
        loop._batches_done = loop.batches.batch if is_counted else 0  # noqa: SLF001

    def end_epoch(self) -> None:
        """Note ``after_train_epoch``, likewise."""
        self._sync()
        loop = self._loop
        if loop.is_drawing or not self._by_epoch:
            return
        self._is_in_epoch, self._live = False, None
        vars(loop).pop("run_iter", None)
        loop._epochs_done, loop._batches_done = self._epoch_before + 1, 0  # noqa: SLF001

    def begin_validation(self) -> None:
        """Note ``before_val``; of a validation that the body began, also in the work directory."""
        self._sync()
        loop = self._loop
        if not loop.is_drawing and loop._before_validation is None:  # noqa: SLF001
            self._note_validation()

    def _note_validation(self) -> None:
        loop = self._loop
        self._is_validating = True
        loop._begin_validation()  # noqa: SLF001
        loop._mark_validated(loop._iters_done, of="step", is_done=False)  # noqa: SLF001

    def end_validation(self) -> None:
        """Note ``after_val``, likewise."""
        if self._is_validating:
            self._is_validating = False
            self._loop._mark_validated(self._loop._iters_done, of="step")  # noqa: SLF001
            self._loop._validated_at = self._loop._iters_done  # noqa: SLF001

    def validate_again(self) -> None:
        """Do a validation that a stop cut off; when to validate only the body knows."""
        loop = self._loop
        if "run" not in overridden(loop) or loop.runner.val_loop is None:
            return
        if loop._validated_at == loop.iter:  # noqa: SLF001 - the checkpoint has learned from it
            return
        has_begun = loop._is_validated(loop.iter, of="step", is_done=False)  # noqa: SLF001
        is_done = loop._is_validated(loop.iter, of="step")  # noqa: SLF001
        if has_begun and (loop._learns_from_validations() or not is_done):  # noqa: SLF001
            self._note_validation()
            loop.runner.interruption.mark(loop.runner)
            loop.runner.val_loop.run()
            loop._end_validation()  # noqa: SLF001

    def end_training(self) -> None:
        """Note ``after_train``."""
        self._sync()
        loop = self._loop
        loop._end_validation()  # noqa: SLF001
        if loop._resumption is not None:  # noqa: SLF001 - there was nothing left to train
            self.validate_again()

    def _sync(self) -> None:
        """Take over what the body has counted by itself."""
        loop = self._loop
        loop._iters_done = max(loop._iters_done, loop.iter)  # noqa: SLF001
        if loop.epoch > loop._epochs_done and self._by_epoch:  # noqa: SLF001
            loop._epochs_done, loop._batches_done = loop.epoch, 0  # noqa: SLF001


class _Stages(Hook):
    """Tells the body of the training under way; a Runner has one of them for all trainings."""

    def __init__(self) -> None:
        self.body: OwnBody | None = None

    @override
    def before_train_epoch(self, runner: Any) -> None:
        if self.body is not None:
            self.body.begin_epoch()

    @override
    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        if self.body is not None:
            self.body.begin_step()

    @override
    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self.body is not None:
            self.body.end_step()

    @override
    def after_train_epoch(self, runner: Any) -> None:
        if self.body is not None:
            self.body.end_epoch()

    @override
    def before_val(self, runner: Any) -> None:
        if self.body is not None:
            self.body.begin_validation()

    @override
    def after_val(self, runner: Any) -> None:
        if self.body is not None:
            self.body.end_validation()

    @override
    def after_train(self, runner: Any) -> None:
        if self.body is not None:
            self.body.end_training()


def _index_of(run_iter: Any) -> tuple[int, str]:
    """Return where ``run_iter`` takes the number of the batch, and by which name, if it does."""
    parameters = list(signature(run_iter).parameters.values())
    for place, one in enumerate(parameters):
        if one.name in ("idx", "batch_idx"):
            return place, one.name
    # By any other name MMEngine's loops give it first; and what is passed on goes to ours.
    is_first = len(parameters) > 1 or any(
        one.kind is Parameter.VAR_POSITIONAL for one in parameters
    )
    return 0 if is_first else 1, "idx"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _too_few(loop: object, num_done: int) -> str:
    return (
        f"{type(loop).__name__} asked for one more batch than the epoch has left, which was "
        f"resumed after {num_done} of its batches. len(self.dataloader) is that of a whole epoch: "
        "go through self.dataloader in a for loop, which ends with what is left."
    )


def _unknown(loop: object, *, by_epoch: bool) -> str:
    source, what = "self.dataloader", "each epoch"
    anew = "trains the epoch that was under way anew"
    if not by_epoch:
        source, what = "self.dataloader_iterator, or self.dataloader", "training"
        anew = "begins the data anew"
    return (
        f"{type(loop).__name__} trains on batches that are not drawn, one after the other, from "
        f"{source}: a checkpoint cannot say where in the data it was written, and a run that goes "
        f"on from it {anew}. Draw them from there in {what}, after call_hook('before_train_epoch')."
    )
