"""Collects what training steps return."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from ._hook import Hook

__all__ = ["RuntimeInfoHook"]


class RuntimeInfoHook(Hook):
    """Puts the position of the run and the losses of every step into ``runner.message_hub``.

    Tensors are kept, not read: a step does not wait for the device.
    """

    priority = "VERY_HIGH"

    @override
    def before_train(self, runner: Any) -> None:
        runner.message_hub.update_info("max_epochs", runner.max_epochs)
        runner.message_hub.update_info("max_iters", runner.max_iters)

    @override
    def before_train_epoch(self, runner: Any) -> None:
        runner.message_hub.update_info("epoch", runner.epoch)

    @override
    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        runner.message_hub.update_info("iter", runner.iter)

    @override
    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        hub = runner.message_hub
        if isinstance(outputs, dict):
            for name, value in outputs.items():
                if isinstance(value, (Tensor, int, float)):
                    hub.update_scalar(f"train/{name}", value)
        result = getattr(runner.optim_wrapper, "last_result", None)
        if result is not None and result.grad_norm is not None:
            hub.update_scalar("train/grad_norm", result.grad_norm)
