"""The interface of a hook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

STAGES = (
    "before_run",
    "after_load_checkpoint",
    "before_train",
    "before_train_epoch",
    "before_train_iter",
    "after_train_iter",
    "after_train_epoch",
    "before_val",
    "before_val_epoch",
    "before_val_iter",
    "after_val_iter",
    "after_val_epoch",
    "after_val",
    "before_save_checkpoint",
    "after_train",
    "before_test",
    "before_test_epoch",
    "before_test_iter",
    "after_test_iter",
    "after_test_epoch",
    "after_test",
    "after_run",
)


class Hook:
    """Base class of hooks; a hook acts at the stages that it overrides.

    A stage common to training, validation and test may be overridden once for all three:
    ``_before_epoch``, ``_after_epoch``, ``_before_iter`` and ``_after_iter`` get the ``mode``.

    Attributes:
        priority: When it acts among the others: a name or a number from 0 (first) to 100.
        only_one: Whether a run refuses a second hook of this class or its subclasses.
    """

    priority: int | str = "NORMAL"
    only_one: bool = False

    def before_run(self, runner: RunView) -> None:
        """Before anything else of ``train``, ``val`` or ``test``."""

    def after_run(self, runner: RunView) -> None:
        """After everything else of ``train``, ``val`` or ``test``."""

    def after_load_checkpoint(self, runner: RunView, checkpoint: dict[str, Any]) -> None:
        """After a checkpoint was read, before anything takes its state from it."""

    def before_save_checkpoint(self, runner: RunView, checkpoint: dict[str, Any]) -> None:
        """Before a checkpoint is written; add tensors and primitives under a key of your own."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: tensors and primitives. By default nothing.

        It goes into every checkpoint, under the hook's class name. Every process calls it at the
        same time, so that a hook may gather; what the first one returns is saved.
        """
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned; called on every process of a resumed run.

        It comes after ``before_run`` and ``after_load_checkpoint``, once the model, the optimizer
        and the schedules are restored. It is not called if the checkpoint has no such state.
        """

    def on_exception(self, runner: RunView, exception: Exception) -> None:
        """After training has failed, before :meth:`clean_up`; the exception is raised again."""

    def clean_up(self, runner: RunView) -> None:
        """Release what outlives the run, such as hooks on the model.

        Called last whenever ``train`` ends, also by an error or a stop, after which no other stage
        follows.
        """

    def before_train(self, runner: RunView) -> None:
        """Before the first epoch."""

    def after_train(self, runner: RunView) -> None:
        """After the last epoch."""

    def before_val(self, runner: RunView) -> None:
        """Before a validation."""

    def after_val(self, runner: RunView) -> None:
        """After a validation."""

    def before_test(self, runner: RunView) -> None:
        """Before a test."""

    def after_test(self, runner: RunView) -> None:
        """After a test."""

    def before_train_epoch(self, runner: RunView) -> None:
        """Before each training epoch."""
        self._before_epoch(runner, mode="train")

    def after_train_epoch(self, runner: RunView) -> None:
        """After each training epoch."""
        self._after_epoch(runner, mode="train")

    def before_val_epoch(self, runner: RunView) -> None:
        """Before the batches of a validation."""
        self._before_epoch(runner, mode="val")

    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:  # noqa: ARG002
        """After the batches of a validation, with its metrics."""
        self._after_epoch(runner, mode="val")

    def before_test_epoch(self, runner: RunView) -> None:
        """Before the batches of a test."""
        self._before_epoch(runner, mode="test")

    def after_test_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:  # noqa: ARG002
        """After the batches of a test, with its metrics."""
        self._after_epoch(runner, mode="test")

    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        """Before each training step."""
        self._before_iter(runner, batch_idx, data_batch, mode="train")

    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """After each training step, with what ``train_step`` returned."""
        self._after_iter(runner, batch_idx, data_batch, outputs, mode="train")

    def before_val_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        """Before each batch of a validation."""
        self._before_iter(runner, batch_idx, data_batch, mode="val")

    def after_val_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """After each batch of a validation, with its predictions."""
        self._after_iter(runner, batch_idx, data_batch, outputs, mode="val")

    def before_test_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        """Before each batch of a test."""
        self._before_iter(runner, batch_idx, data_batch, mode="test")

    def after_test_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """After each batch of a test, with its predictions."""
        self._after_iter(runner, batch_idx, data_batch, outputs, mode="test")

    def _before_epoch(self, runner: RunView, mode: str = "train") -> None: ...

    def _after_epoch(self, runner: RunView, mode: str = "train") -> None: ...

    def _before_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, mode: str = "train"
    ) -> None: ...

    def _after_iter(
        self,
        runner: RunView,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = "train",
    ) -> None: ...

    @classmethod
    def acts_at(cls, stage: str) -> bool:
        """Return whether this class does anything at ``stage``."""
        (when, *_, unit), names = stage.split("_"), [stage]
        if unit in ("epoch", "iter"):
            names.append(f"_{when}_{unit}")
        return any(getattr(cls, name) is not getattr(Hook, name) for name in names)

    # What MMEngine's hooks ask of the base class.
    stages = STAGES

    def get_triggered_stages(self) -> list[str]:
        """List the stages at which this hook does anything, in the order they are passed."""
        return [stage for stage in STAGES if self.acts_at(stage)]

    def every_n_epochs(self, runner: RunView, n: int, start: int = 0) -> bool:
        """Return whether the epoch just trained is ``start``, ``start + n``, and so on.

        Without ``start`` it is the first at ``n``. An ``n`` that is not positive is never.
        """
        count = runner.epoch + 1 - start
        return n > 0 and count >= 0 and count % n == 0

    def every_n_train_iters(self, runner: RunView, n: int, start: int = 0) -> bool:
        """Return the same as :meth:`every_n_epochs`, for the step of the run just trained."""
        count = runner.iter + 1 - start
        return n > 0 and count >= 0 and count % n == 0

    def every_n_inner_iters(self, batch_idx: int, n: int) -> bool:
        """Return whether the step just trained is ``n``, ``2 n``, and so on of this epoch."""
        return n > 0 and (batch_idx + 1) % n == 0

    def end_of_epoch(self, dataloader: Any, batch_idx: int) -> bool:
        """Return whether ``batch_idx`` is the last of ``dataloader``."""
        return batch_idx + 1 == len(dataloader)

    def is_last_train_epoch(self, runner: RunView) -> bool:
        """Return whether the epoch just trained is the last."""
        return bool(runner.epoch + 1 == runner.max_epochs)

    def is_last_train_iter(self, runner: RunView) -> bool:
        """Return whether the step just trained is the last."""
        return bool(runner.iter + 1 == runner.max_iters)
