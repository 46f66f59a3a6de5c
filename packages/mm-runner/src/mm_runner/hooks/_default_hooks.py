"""The hooks that every run has, besides the logger and the checkpoints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from torch import Tensor
from typing_extensions import override

from mm_runner.data import announce_epoch
from mm_runner.evaluator import as_number
from mm_runner.optim import named_schedulers, named_wrappers

from ._hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from mm_runner.data import BatchFeed
    from mm_runner.run_view import RunView


class RuntimeInfoHook(Hook):
    """Put the run's position, every step's losses and the metrics into ``runner.message_hub``.

    Tensors are kept, not read: a step does not wait for the device. The gradient norm is
    ``grad_norm``, of one of several optimizer wrappers ``<name>.grad_norm``.
    """

    priority = "VERY_HIGH"

    def __init__(self) -> None:
        self._wrappers: dict[str, Any] = {}
        self._last_results: dict[str, Any] = {}
        self._record: dict[str, Callable[[Any], None]] = {}

    @override
    def before_run(self, runner: RunView) -> None:
        runner.message_hub.follow(runner, lambda: learning_rates(runner.optim_wrapper))

    @override
    def before_train(self, runner: RunView) -> None:
        self._record = {}
        meta = getattr(runner.train_dataloader.dataset, "metainfo", None)
        runner.message_hub.update_info_dict({"loop_stage": "train", "dataset_meta": meta})
        self._wrappers = named_wrappers(runner.optim_wrapper)

    @override
    def before_val(self, runner: RunView) -> None:
        runner.message_hub.update_info("loop_stage", "val")

    @override
    def after_val(self, runner: RunView) -> None:
        if runner.is_training:
            runner.message_hub.update_info("loop_stage", "train")

    @override
    def before_test(self, runner: RunView) -> None:
        runner.message_hub.update_info("loop_stage", "test")

    @override
    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        runner.message_hub.update_results("val", metrics or {})

    @override
    def after_test_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        runner.message_hub.update_results("test", metrics or {})

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        for name, value in outputs.items() if isinstance(outputs, dict) else ():
            # The usual case, without further checks.
            if type(value) is Tensor and not value.ndim and not value.requires_grad:
                if name not in self._record:
                    self._record[name] = runner.message_hub.recorder(f"train/{name}")
                self._record[name](value)
                continue
            number = value if isinstance(value, Tensor) else as_number(value)
            if number is not None:
                runner.message_hub.update_scalar(f"train/{name}", number)
        for name, wrapper in self._wrappers.items():
            result = wrapper.last_result
            # One of several wrappers that did not step keeps its result.
            is_new = result is not self._last_results.get(name)
            self._last_results[name] = result
            if is_new and result.grad_norm is not None:
                key = f"{name}.grad_norm" if name else "grad_norm"
                runner.message_hub.update_scalar(f"train/{key}", result.grad_norm)


class IterTimerHook(Hook):
    """Put seconds per step (``time``) and seconds waited for data (``data_time``) into the hub.

    Steps are timed on the host: means over a window are right, as the device's queue fills up, but
    a single step may look short. Hooks between two steps count as ``time``, not as ``data_time``;
    a validation between them counts as neither.
    """

    def __init__(self) -> None:
        self._last = self._before_val_s = 0.0
        self._feed: BatchFeed | None = None
        self._waited_s = 0.0  # up to the newest step

    @override
    def before_train(self, runner: RunView) -> None:
        self._feed = getattr(runner.train_loop, "batches", None)
        self._waited_s = self._feed.waited_s if self._feed is not None else 0.0
        self._record_wait = runner.message_hub.recorder("train/data_time")
        self._record_step = runner.message_hub.recorder("train/time")

    @override
    def before_val(self, runner: RunView) -> None:
        self._before_val_s = time.perf_counter() - self._last

    @override
    def after_val(self, runner: RunView) -> None:
        self._last = time.perf_counter() - self._before_val_s

    @override
    def _before_epoch(self, runner: RunView, mode: str = "train") -> None:
        self._last = time.perf_counter()

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        now = time.perf_counter()
        self._record_step(now - self._last)
        self._last = now
        if self._feed is not None:  # else a loop that times no batches
            waited_s = self._feed.waited_s
            self._record_wait(waited_s - self._waited_s)
            self._waited_s = waited_s

    @override
    def before_val_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        runner.message_hub.update_scalar("val/data_time", time.perf_counter() - self._last)

    @override
    def before_test_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        runner.message_hub.update_scalar("test/data_time", time.perf_counter() - self._last)

    @override
    def _after_iter(self, runner: RunView, *batch: Any, mode: str = "train", **more: Any) -> None:
        now = time.perf_counter()
        runner.message_hub.update_scalar(f"{mode}/time", now - self._last)
        self._last = now


class DistSamplerSeedHook(Hook):
    """Set the sampler's epoch, and seed the loader by it.

    Every epoch is shuffled differently, alike on all ranks, also in a resumed run. A loop over
    iterations sets the sampler's epoch itself.
    """

    @override
    def before_train_epoch(self, runner: RunView) -> None:
        runner.loader_generator.manual_seed(runner.seed + runner.epoch)
        announce_epoch(runner.train_dataloader, runner.epoch)


class ParamSchedulerHook(Hook):
    """Step the schedules by iteration after each step, and those by epoch after each epoch.

    A schedule that follows a metric gets the results of every validation in training. A step
    skipped for an overflow leaves the wrapper's schedules by iteration where they are; where the
    host learns of a skip one step late (fused optimizers in float16), the next step holds.
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
            if by_step := [one for one in schedules if not one.by_epoch]:
                wrapper = named_wrappers(runner.optim_wrapper)[name]
                self._by_step.append((name, wrapper, by_step))
        counts_epochs = getattr(runner.train_loop, "by_epoch", True)
        for one in () if counts_epochs else self._schedules:
            if one.by_epoch and not one.need_val_args:
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


def learning_rates(optim_wrapper: Any) -> dict[str, float]:
    """Return the present learning rates; this waits for the device where they are tensors.

    Args:
        optim_wrapper: An optimizer wrapper, or an ``OptimWrapperDict``.

    Returns:
        ``lr``, that of the first group of parameters; where groups began with different ones also
        ``base_lr``, that of the groups which have the optimizer's own. Of several optimizers each
        is ``<name>.lr`` and ``<name>.base_lr``.
    """
    rates = {}
    for name, wrapper in named_wrappers(optim_wrapper).items():
        prefix = f"{name}." if name else ""
        for key, values in wrapper.get_lr().items():
            rates[f"{prefix}{key}"] = float(values[0])
        groups = [group for group in wrapper.param_groups if "lr" in group]
        # Initial rates do not change: a line does not lose a name where rates meet.
        initial = [float(group.get("initial_lr", group["lr"])) for group in groups]
        default = getattr(wrapper.optimizer, "defaults", {}).get("lr")
        if len(set(initial)) > 1 and default is not None and float(default) in initial:
            rates[f"{prefix}base_lr"] = float(groups[initial.index(float(default))]["lr"])
    return rates
