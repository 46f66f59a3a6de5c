"""Ends a run whose loss is not finite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

import mm_dist
from mm_amp import NonFiniteError

from ._arguments import check_integer
from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["CheckInvalidLossHook"]


class CheckInvalidLossHook(Hook):
    """Reads the losses every ``interval`` steps, and ends the run if one is not finite.

    All ranks end together, whichever rank's loss it was. To skip single steps instead, give the
    optimizer wrapper ``max_skips``.

    Args:
        interval: Training steps between two checks, each of which waits for the device. Defaults
            to 50.

    Raises:
        ConfigError: If ``interval`` is not a positive integer.
    """

    def __init__(self, interval: int = 50) -> None:
        check_integer("CheckInvalidLossHook.interval", interval, least=1)
        self.interval = interval

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if not self.every_n_train_iters(runner, self.interval):
            return
        losses = {
            name: float(value)
            for name, value in (outputs.items() if isinstance(outputs, dict) else ())
            if "loss" in name and isinstance(value, (Tensor, int, float))
        }
        bad = [f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value)]
        num_bad = torch.tensor(float(len(bad)))
        mm_dist.all_reduce(num_bad)
        if num_bad:
            raise NonFiniteError(
                f"CheckInvalidLossHook: after step {runner.iter + 1} a loss is not finite: "
                f"{', '.join(bad) or 'on another rank'}. Lower the learning rate, clip gradients, "
                "or give the optimizer wrapper max_skips."
            )
