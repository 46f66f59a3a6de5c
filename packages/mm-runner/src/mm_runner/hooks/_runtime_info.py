"""Collects losses, metrics and the position of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor
from typing_extensions import override

from mm_amp import AmpOptimWrapper, OptimWrapper
from mm_runner.evaluator import as_number
from mm_runner.optim import named_wrappers

from ._hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from mm_runner.run_view import RunView

__all__ = ["RuntimeInfoHook", "learning_rates"]

# Their gradients have a norm only if they are clipped.
_KNOWN = (OptimWrapper, AmpOptimWrapper)


class RuntimeInfoHook(Hook):
    """Puts the run's position, every step's losses and the metrics into ``runner.message_hub``.

    Tensors are kept, not read: a step does not wait for the device. The gradient norm is
    ``grad_norm``, of one of several optimizer wrappers ``<name>.grad_norm``.
    """

    priority = "VERY_HIGH"

    def __init__(self) -> None:
        self._wrappers: dict[str, Any] = {}
        self._last_results: dict[str, Any] = {}
        self._record: dict[str, Callable[[Any], None]] = {}

    @override
    def before_train(self, runner: RunView) -> None:
        self._record = {}
        runner.message_hub.follow(runner, lambda: learning_rates(runner.optim_wrapper))
        self._wrappers = {
            name: wrapper
            for name, wrapper in named_wrappers(runner.optim_wrapper).items()
            # A user's own wrapper may measure a norm without clipping.
            if type(wrapper) not in _KNOWN or wrapper.clip_grad is not None
        }

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
                record = self._record.get(name)
                if record is None:
                    record = self._record[name] = runner.message_hub.recorder(f"train/{name}")
                record(value)
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
        # What schedules began with does not change: a line does not lose a name where rates meet.
        began = [float(group.get("initial_lr", group["lr"])) for group in groups]
        own = getattr(wrapper.optimizer, "defaults", {}).get("lr")
        if len(set(began)) > 1 and own is not None:
            pairs = zip(groups, began, strict=True)
            of_base = [group["lr"] for group, rate in pairs if math.isclose(rate, float(own))]
            rates.update({f"{prefix}base_lr": float(of_base[0])} if of_base else {})
    return rates
