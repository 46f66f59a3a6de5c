"""Train and evaluation steps of wrapped and plain models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import isclass
from typing import Any

from torch import nn

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.registry import MODEL_WRAPPERS

__all__ = [
    "EvalStep",
    "TrainStep",
    "eval_step_of",
    "run_eval_step",
    "run_train_step",
    "train_step_of",
    "uncalled_step",
    "unwrap_model",
]

TrainStep = Callable[[Any, Any], Any]
EvalStep = Callable[[Any], Any]

# What our step calls of a model besides its forward, and the packages whose train_step is that.
_CALLED = ("data_preprocessor", "parse_losses")
_SAME_STEP = ("mm_runner", "mmengine")
_REMEDY = (
    "give model_wrapper_cfg=dict(type='MMSeparateDistributedDataParallel'), which wraps the "
    "children and calls it, or a wrapper with a train_step of its own."
)


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the user's module inside any nesting of wrappers, torch's, ours or registered ones."""
    registered = tuple(kind for kind in MODEL_WRAPPERS.module_dict.values() if isclass(kind))
    while isinstance(getattr(model, "module", None), nn.Module) and (
        mm_dist.is_model_wrapper(model) or isinstance(model, registered)
    ):
        model = model.module  # type: ignore[assignment]
    return model


def train_step_of(model: nn.Module) -> TrainStep:
    """Return the function that takes ``(data, optim_wrapper)`` and trains one step.

    A wrapper without ``train_step`` (torch's DistributedDataParallel, a subclass of it) is stepped
    through its own forward, so that it synchronises the gradients.

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
        f"A model with train_step(data, optim_wrapper) is needed to train; {_describe(model)} has "
        "none. Derive it from mm_runner.model.BaseModel and return losses from "
        "forward(..., mode='loss')."
    )


def eval_step_of(model: nn.Module, name: str) -> EvalStep:
    """Return the function that takes a batch and returns predictions.

    Args:
        model: Wrapped or not.
        name: ``"val_step"`` or ``"test_step"``.

    Raises:
        ConfigError: If neither the model nor what it wraps has it.
    """
    for candidate in (model, unwrap_model(model)):
        step = getattr(candidate, name, None)
        if step is not None:
            return step  # type: ignore[no-any-return]
    raise ConfigError(
        f"A model with {name}(data) is needed to evaluate; {_describe(model)} has none. Derive it "
        "from mm_runner.model.BaseModel and return predictions from forward(..., mode='predict')."
    )


def run_train_step(model: nn.Module, module: Any, data: Any, optim_wrapper: Any) -> Any:
    """Train one step: forward through ``model``, the rest with ``module``, which it may wrap."""
    with optim_wrapper.optim_context(model):
        data = module.data_preprocessor(data, True)  # noqa: FBT003 - MMEngine's signature
        # The common batch, with a call less.
        losses = model(**data, mode="loss") if type(data) is dict else _forward(model, data, "loss")
    # Autocast has ended: neither the sum of losses nor backward may run under it.
    loss, log_vars = module.parse_losses(losses)
    optim_wrapper.update_params(loss)
    return log_vars


def run_eval_step(module: Any, data: Any) -> Any:
    """Predict for one batch."""
    data = module.data_preprocessor(data, False)  # noqa: FBT003 - MMEngine's signature
    return _forward(module, data, "predict")


def uncalled_step(model: nn.Module, wrapper: Any) -> str | None:
    """Return a warning if a wrapper does not call the model's own ``train_step``.

    Args:
        model: Not wrapped.
        wrapper: The class that wraps it, or will.

    Returns:
        ``None`` if the model has none, or it is called.

    Raises:
        ConfigError: If the model lacks what the wrapper calls instead.
    """
    step = getattr(wrapper, "train_step", None)
    if step is None:  # stepped by train_step_of, unless it passes on attributes of the model
        is_ours = getattr(wrapper, "__getattr__", None) is nn.Module.__getattr__
    else:
        is_ours = step in (
            mm_dist.MMDistributedDataParallel.train_step,
            mm_dist.MMFullyShardedDataParallel.train_step,
        )
    if not is_ours:
        return None
    definer = next((kind for kind in type(model).__mro__ if "train_step" in vars(kind)), None)
    missing = [name for name in _CALLED if not callable(getattr(model, name, None))]
    if missing:
        uncalled = ", and its train_step is not called" if definer else ""
        raise ConfigError(
            f"{wrapper.__name__} trains by forward(mode='loss'), {' and '.join(_CALLED)} of the "
            f"model; {type(model).__name__} has no {' and no '.join(missing)}{uncalled}. Derive it "
            "from mm_runner.model.BaseModel and return losses from forward(..., mode='loss')"
            f"{f'; or, for its own train_step, {_REMEDY}' if definer else '.'}"
        )
    if definer is None or definer.__module__.partition(".")[0] in _SAME_STEP:
        return None
    return (
        f"The train_step of {definer.__name__} is not called by {wrapper.__name__}, which calls "
        "forward(mode='loss'), data_preprocessor and parse_losses of the model: what else it does "
        f"is left out. Put that into forward; or {_REMEDY}"
    )


def _forward(model: nn.Module, data: Any, mode: str) -> Any:
    # A dict first: asking for a Mapping costs several times as much, in every step.
    if isinstance(data, (dict, Mapping)):
        return model(**data, mode=mode)
    if isinstance(data, (list, tuple)):
        return model(*data, mode=mode)
    raise TypeError(
        f"The batch must be a dict (keyword arguments of forward) or a list or tuple (positional "
        f"ones), got {type(data).__name__}. Let the dataset or collate_fn return one of these."
    )


def _describe(model: nn.Module) -> str:
    inner = unwrap_model(model)
    if inner is model:
        return type(model).__name__
    return f"{type(inner).__name__} in {type(model).__name__}"
