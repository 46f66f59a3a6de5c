"""Steps parameter schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.optim import named_schedulers, named_wrappers

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["ParamSchedulerHook"]


class ParamSchedulerHook(Hook):
    """Steps the schedules by iteration after each step, and those by epoch after each epoch.

    A schedule that follows a metric gets the results of every validation in training. Each of
    several optimizer wrappers has its own schedules, which its own skipped steps hold.

    A step skipped for an overflow leaves schedules by iteration where they are, so that no value is
    left out. Where the host learns of a skip one step late (fused optimizers in float16), the step
    after that holds.
    """

    priority = "LOW"

    def __init__(self) -> None:
        self._num_skipped: dict[str, int] = {}
        self._schedules: list[Any] = []
        # Those by iteration, with the name and the wrapper that they belong to.
        self._by_step: list[tuple[str, Any, list[Any]]] = []

    @override
    def before_train(self, runner: RunView) -> None:
        self._num_skipped, self._by_step = {}, []
        named = named_schedulers(runner.param_schedulers)
        self._schedules = [one for schedules in named.values() for one in schedules]
        for name, schedules in named.items():
            by_step = [one for one in schedules if not one.by_epoch]
            if by_step:
                wrapper = named_wrappers(runner.optim_wrapper)[name]
                self._by_step.append((name, wrapper, by_step))
        for one in self._schedules:
            counts_steps = not getattr(runner.train_loop, "by_epoch", True)
            if counts_steps and one.by_epoch and not one.need_val_args:
                runner.logger.warning(
                    f"{one.where} counts epochs, and this run counts iterations: it will not "
                    "change. Give by_epoch=False, or convert_to_iter_based=True."
                )

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        for name, wrapper, schedules in self._by_step:
            # One of several wrappers need not step in every iteration, and keeps its answer.
            is_known = wrapper.step_skipped  # first: asking brings the number up to date
            before, self._num_skipped[name] = self._num_skipped.get(name), wrapper.num_skipped
            if not is_known or wrapper.num_skipped == before:
                for one in schedules:
                    one.step()

    @override
    def after_train_epoch(self, runner: RunView) -> None:
        for one in self._schedules:
            if one.by_epoch:
                one.step()

    @override
    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        for one in self._schedules if runner.is_training else ():
            if one.need_val_args:
                one.follow(metrics or {})
