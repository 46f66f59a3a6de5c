"""Collects what training steps return."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from typing_extensions import override

from mm_runner.optim import named_wrappers

from ._hook import Hook

__all__ = ["RuntimeInfoHook"]


class RuntimeInfoHook(Hook):
    """Puts the position of the run and the losses of every step into ``runner.message_hub``.

    Tensors are kept, not read: a step does not wait for the device. The norm of the gradients is
    ``grad_norm``, that of one of several optimizer wrappers ``<name>.grad_norm``.
    """

    priority = "VERY_HIGH"

    def __init__(self) -> None:
        self._wrappers: dict[str, Any] = {}
        self._last_results: dict[str, Any] = {}

    @override
    def before_train(self, runner: Any) -> None:
        for name in ("epoch", "iter", "max_epochs", "max_iters"):
            runner.message_hub.follow_info(name, partial(getattr, runner, name))
        self._wrappers = named_wrappers(runner.optim_wrapper)

    @override
    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        hub = runner.message_hub
        if isinstance(outputs, dict):
            for name, value in outputs.items():
                if isinstance(value, (Tensor, int, float)):
                    hub.update_scalar(f"train/{name}", value)
        for name, wrapper in self._wrappers.items():
            result = wrapper.last_result
            # One of several wrappers that did not step keeps its result.
            is_new = result is not self._last_results.get(name)
            self._last_results[name] = result
            if is_new and result.grad_norm is not None:
                key = f"{name}.grad_norm" if name else "grad_norm"
                hub.update_scalar(f"train/{key}", result.grad_norm)
