"""Collects losses, metrics and the position of a run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from typing_extensions import override

from mm_amp import AmpOptimWrapper, OptimWrapper
from mm_runner.evaluator import as_number
from mm_runner.optim import named_wrappers

from ._hook import Hook
from ._scalars import learning_rates

if TYPE_CHECKING:
    from collections.abc import Callable

    from mm_runner.run_view import RunView

__all__ = ["RuntimeInfoHook"]

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
        names = ("epoch", "iter", "max_epochs", "max_iters")
        runner.message_hub.follow(
            {name: partial(getattr, runner, name) for name in names},
            lambda: learning_rates(runner.optim_wrapper),
        )
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
        hub = runner.message_hub
        if isinstance(outputs, dict):
            for name, value in outputs.items():
                # The usual case, without further checks.
                if type(value) is Tensor and not value.ndim and not value.requires_grad:
                    record = self._record.get(name)
                    if record is None:
                        record = self._record[name] = hub.recorder(f"train/{name}")
                    record(value)
                    continue
                number = value if isinstance(value, Tensor) else as_number(value)
                if number is not None:
                    hub.update_scalar(f"train/{name}", number)
        for name, wrapper in self._wrappers.items():
            result = wrapper.last_result
            # One of several wrappers that did not step keeps its result.
            is_new = result is not self._last_results.get(name)
            self._last_results[name] = result
            if is_new and result.grad_norm is not None:
                key = f"{name}.grad_norm" if name else "grad_norm"
                hub.update_scalar(f"train/{key}", result.grad_norm)
