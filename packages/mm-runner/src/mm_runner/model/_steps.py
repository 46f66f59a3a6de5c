"""Train and evaluation steps of wrapped and plain models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import isclass
from typing import Any

from torch import nn

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.registry import MODEL_WRAPPERS

# What our step calls of a model besides its forward, and the packages whose train_step is that.
_CALLED = ("data_preprocessor", "parse_losses")
_SAME_STEP = ("mm_runner", "mmengine")


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the user's module inside any nesting of wrappers, torch's, ours or registered ones."""
    registered = tuple(kind for kind in MODEL_WRAPPERS.module_dict.values() if isclass(kind))
    while isinstance(getattr(model, "module", None), nn.Module) and (
        mm_dist.is_model_wrapper(model) or isinstance(model, registered)
    ):
        model = model.module  # type: ignore[assignment]
    return model


def train_step_of(model: nn.Module) -> Callable[[Any, Any], Any]:
    """Return the function that takes ``(data, optim_wrapper)`` and trains one step.

    A wrapper without ``train_step`` (torch's DistributedDataParallel, a subclass of it) is stepped
    through its own forward, so that it synchronizes the gradients.

    Raises:
        ConfigError: If neither the model nor what it wraps can be stepped.
    """
    own = getattr(model, "train_step", None)
    inner = unwrap_model(model)
    if inner is not model:
        uncalled_step(inner, type(model))  # raises where something is missing
    if own is not None:
        return own  # type: ignore[no-any-return]
    if inner is not model and hasattr(inner, "parse_losses"):
        return lambda data, optim_wrapper: run_train_step(model, inner, data, optim_wrapper)
    raise ConfigError(
        f"A model with train_step(data, optim_wrapper) is needed to train; {type(inner).__name__} "
        "has none. Derive it from mm_runner.model.BaseModel and return losses from "
        "forward(..., mode='loss')."
    )


def eval_step_of(model: nn.Module, name: str) -> Callable[[Any], Any]:
    """Return the function that takes a batch and returns predictions.

    Args:
        model: Wrapped or not.
        name: ``"val_step"`` or ``"test_step"``.

    Raises:
        ConfigError: If neither the model nor what it wraps has it.
    """
    inner = unwrap_model(model)
    step = getattr(model, name, None) or getattr(inner, name, None)
    if step is None:
        raise ConfigError(
            f"A model with {name}(data) is needed to evaluate; {type(inner).__name__} has none. "
            "Derive it from mm_runner.model.BaseModel and return predictions from "
            "forward(..., mode='predict')."
        )
    return step  # type: ignore[no-any-return]


def run_train_step(model: nn.Module, module: Any, data: Any, optim_wrapper: Any) -> Any:
    """Train one step: forward through ``model``, the rest with ``module``, which it may wrap."""
    with optim_wrapper.optim_context(model):
        data = module.data_preprocessor(data, True)  # noqa: FBT003 - MMEngine's signature
        # The common batch, with a call less.
        losses = (
            model(**data, mode="loss") if type(data) is dict else run_forward(model, data, "loss")
        )
    # Autocast has ended: neither the sum of losses nor backward may run under it.
    loss, log_vars = module.parse_losses(losses)
    optim_wrapper.update_params(loss)
    return log_vars


def run_forward(model: nn.Module, data: Any, mode: str) -> Any:
    """Call the model with the entries of a batch as its arguments.

    Raises:
        TypeError: If the batch is neither a mapping nor a list or tuple.
    """
    # A dict first: asking for a Mapping costs several times as much, in every step.
    if isinstance(data, (dict, Mapping)):
        return model(**data, mode=mode)
    if isinstance(data, (list, tuple)):
        return model(*data, mode=mode)
    raise TypeError(
        f"The batch must be a dict (keyword arguments of forward) or a list or tuple (positional "
        f"ones), got {type(data).__name__}. Let the dataset or collate_fn return one of these."
    )


def uncalled_step(model: nn.Module, wrapper: Any) -> str | None:
    """Return a warning if a wrapper does not call the model's own ``train_step``, else ``None``.

    Args:
        model: Not wrapped.
        wrapper: The class that wraps it, or will.

    Raises:
        ConfigError: If the model lacks what the wrapper calls instead.
    """
    ours = (
        mm_dist.MMDistributedDataParallel.train_step,
        mm_dist.MMFullyShardedDataParallel.train_step,
    )
    step = getattr(wrapper, "train_step", None)
    # A wrapper without one is stepped by train_step_of, unless it passes on the model's.
    passes_on = getattr(wrapper, "__getattr__", None) is not nn.Module.__getattr__
    if passes_on if step is None else step not in ours:
        return None
    definer = next((kind for kind in type(model).__mro__ if "train_step" in vars(kind)), None)
    missing = [name for name in _CALLED if not callable(getattr(model, name, None))]
    is_same = definer is None or definer.__module__.partition(".")[0] in _SAME_STEP
    if not missing and is_same:
        return None
    text = (
        f"{wrapper.__name__} trains by forward(mode='loss'), {' and '.join(_CALLED)} of the model; "
        f"the train_step of {type(model).__name__} is not called. Derive the model from "
        "mm_runner.model.BaseModel and do all in forward; or, for its own train_step, give "
        "model_wrapper_cfg=dict(type='MMSeparateDistributedDataParallel')."
    )
    if missing:
        raise ConfigError(f"{type(model).__name__} has no {' and no '.join(missing)}: {text}")
    return text
