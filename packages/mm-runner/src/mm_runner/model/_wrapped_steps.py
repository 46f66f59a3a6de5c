"""What becomes of a model's own ``train_step`` in a wrapper that steps the model by itself."""

from __future__ import annotations

from typing import Any

from torch import nn

import mm_dist
from mm_runner.errors import ConfigError

__all__ = ["check_wrapped_step", "uncalled_step"]

# What a step of ours calls of the model, besides its forward.
_CALLED = ("data_preprocessor", "parse_losses")
# Whose train_step does just that.
_ALIKE = ("mm_runner", "mmengine")
_REMEDY = (
    "give model_wrapper_cfg=dict(type='MMSeparateDistributedDataParallel'), which wraps the "
    "children and calls it, or a wrapper with a train_step of its own."
)


def uncalled_step(model: nn.Module, wrapper: Any) -> str | None:
    """Say that a model's own ``train_step`` is not called.

    Args:
        model: In no wrapper.
        wrapper: The class that it is in, or is going to be.

    Returns:
        ``None`` if it is called, there is none, or :func:`check_wrapped_step` raises.
    """
    definer = next((kind for kind in type(model).__mro__ if "train_step" in vars(kind)), None)
    is_own = definer is not None and definer.__module__.partition(".")[0] not in _ALIKE
    if definer is None or not is_own or not _steps_by_itself(wrapper) or _missing_in(model):
        return None
    return (
        f"The train_step of {definer.__name__} is not called by {wrapper.__name__}, which calls "
        "forward(mode='loss'), data_preprocessor and parse_losses of the model: what else it does "
        f"is left out. Put that into forward; or {_REMEDY}"
    )


def check_wrapped_step(model: nn.Module, wrapper: Any) -> None:
    """Check that a model has what the ``train_step`` of a wrapper calls.

    Args:
        model: In no wrapper.
        wrapper: As of :func:`uncalled_step`.

    Raises:
        ConfigError: If something is missing.
    """
    missing = _missing_in(model)
    if missing and _steps_by_itself(wrapper):
        does_step = callable(getattr(model, "train_step", None))
        raise ConfigError(
            f"{wrapper.__name__} trains by forward(mode='loss'), {' and '.join(_CALLED)} of the "
            f"model; {type(model).__name__} has no {' and no '.join(missing)}"
            f"{', and its train_step is not called' if does_step else ''}. Derive it from "
            "mm_runner.model.BaseModel and return losses from forward(..., mode='loss')"
            f"{f'; or, for its own train_step, {_REMEDY}' if does_step else '.'}"
        )


def _missing_in(model: nn.Module) -> list[str]:
    return [name for name in _CALLED if not callable(getattr(model, name, None))]


def _steps_by_itself(wrapper: Any) -> bool:
    """Tell whether the step is one of ours that does not call the model's own."""
    step = getattr(wrapper, "train_step", None)
    if step is None:  # it is stepped as ours are, unless it passes on what it is asked for
        return getattr(wrapper, "__getattr__", None) is nn.Module.__getattr__
    # A subclass may have a step of its own, which may call the model's.
    return step in (
        mm_dist.MMDistributedDataParallel.train_step,
        mm_dist.MMFullyShardedDataParallel.train_step,
    )
