"""Count the floating-point operations of one training step."""

from __future__ import annotations

from typing import Any

from ._batch_size import count_samples

__all__ = ["FlopCount"]

# The first step of a run may do what later ones do not, such as building buckets.
_COUNTED_STEP = 2


class FlopCount:
    """Counts the floating-point operations of one early step with torch's counter.

    A multiplication and an addition are two operations; those that activation checkpointing
    recomputes count again. It needs torch 2.1, and a model that is not compiled: the counter does
    not see into a compiled graph.

    Args:
        given: Operations per sample, forward and backward, which are then not counted; or
            ``None``.
        is_compiled: Whether the model is.
    """

    def __init__(self, given: float | None, *, is_compiled: bool) -> None:
        self.per_sample = given
        self.reason: str | None = None
        self._step = 0
        self._mode: Any = None
        if given is None and is_compiled:
            self.reason = "a compiled model is not counted; give flops_per_sample"

    def before_step(self) -> None:
        """Begin to count, if it is time."""
        if self.per_sample is not None or self.reason is not None:
            return
        self._step += 1
        if self._step < _COUNTED_STEP:
            return
        try:
            from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - heavy, used once
        except ImportError:
            self.reason = "torch counts from 2.1 on; give flops_per_sample"
            return
        self._mode = FlopCounterMode(display=False)
        self._mode.__enter__()

    def after_step(self, batch: Any) -> None:
        """End counting, if it began."""
        mode = self.stop()
        if mode is None:
            return
        total = mode.get_total_flops()
        if total:
            self.per_sample = total / max(count_samples(batch), 1)
        else:
            self.reason = "torch knows no operation of this model; give flops_per_sample"

    def stop(self) -> Any:
        """Count no longer, whatever came of the step, and return what has counted, if any."""
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)
        return mode
