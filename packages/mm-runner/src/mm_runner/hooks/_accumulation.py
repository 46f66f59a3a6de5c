"""Whether gradients outlive a step."""

from __future__ import annotations

from typing import Any

from mm_amp import OptimWrapper
from mm_runner.optim import named_wrappers

__all__ = ["may_accumulate"]


def may_accumulate(optim_wrapper: Any) -> bool:
    """Tell whether a step of training may leave gradients for the next, of any wrapper."""
    return not all(map(_steps_always, named_wrappers(optim_wrapper).values()))


def _steps_always(wrapper: Any) -> bool:
    is_own = getattr(type(wrapper), "should_update", None) is OptimWrapper.should_update
    return is_own and wrapper.accumulative_counts == 1
