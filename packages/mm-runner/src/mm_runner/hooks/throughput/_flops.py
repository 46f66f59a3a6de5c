"""The work of a training step, counted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mm_runner._checkpoint_frames import is_repetition

from ._batch_size import count_samples

__all__ = ["FlopCount"]

# The first step of a run may do what later ones do not, such as building buckets.
_COUNTED_STEP = 2
# Where the counter has the formula of each operation, in one torch or another.
_FORMULAS = ("flop_registry", "flop_mapping")


class FlopCount:
    """Counts the floating-point operations of one early step with torch's counter.

    A multiplication and an addition are two operations. They are the model's: what
    torch.utils.checkpoint computes again in backward does not count. It needs torch 2.1, and a
    model that is not compiled: what is inside a compiled graph is not seen.

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
        for name in _FORMULAS:
            formulas = getattr(self._mode, name, {})
            counted = {operation: _unless_repeated(count) for operation, count in formulas.items()}
            setattr(self._mode, name, counted)
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


def _unless_repeated(count: Callable[..., int]) -> Callable[..., int]:
    def counted(*args: Any, **kwargs: Any) -> int:
        return 0 if is_repetition() else count(*args, **kwargs)

    return counted
