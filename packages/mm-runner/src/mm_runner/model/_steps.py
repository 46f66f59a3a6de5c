"""One step of a model, whatever it is wrapped in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import isclass
from typing import Any

from torch import nn

from mm_dist import is_model_wrapper
from mm_runner.errors import ConfigError
from mm_runner.registry import MODEL_WRAPPERS

from ._data_preprocessor import BaseDataPreprocessor
from ._wrapped_steps import check_wrapped_step

__all__ = [
    "EvalStep",
    "TrainStep",
    "eval_step_of",
    "run_eval_step",
    "run_train_step",
    "train_step_of",
    "unwrap_model",
]

TrainStep = Callable[[Any, Any], Any]
EvalStep = Callable[[Any], Any]


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the user's module inside any nesting of wrappers, torch's, ours or registered ones."""
    registered = tuple(kind for kind in MODEL_WRAPPERS.module_dict.values() if isclass(kind))
    while isinstance(getattr(model, "module", None), nn.Module) and (
        is_model_wrapper(model) or isinstance(model, registered)
    ):
        model = model.module  # type: ignore[assignment]
    return model


def train_step_of(model: nn.Module) -> TrainStep:
    """Return the function that takes ``(data, optim_wrapper)`` and trains one step.

    A wrapper without ``train_step`` (torch's DistributedDataParallel, a subclass of it) is stepped
    here, through its own forward, so that its gradient synchronisation takes part.

    Raises:
        ConfigError: If neither the model nor what it wraps can be stepped.
    """
    own = getattr(model, "train_step", None)
    inner = unwrap_model(model)
    if inner is not model:
        check_wrapped_step(inner, type(model))
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
        preprocessor = module.data_preprocessor
        is_ours = isinstance(preprocessor, BaseDataPreprocessor)
        if is_ours and preprocessor._only_casts():  # noqa: SLF001 - of this package
            data = preprocessor.cast_data(data)  # a call of a module costs five times as much
        else:
            data = preprocessor(data, True)  # noqa: FBT003 - MMEngine's signature
        # What most batches are, with a call less.
        losses = model(**data, mode="loss") if type(data) is dict else _forward(model, data, "loss")
    # Autocast has ended: neither the sum of losses nor backward may run under it.
    loss, log_vars = module.parse_losses(losses)
    optim_wrapper.update_params(loss)
    return log_vars


def run_eval_step(module: Any, data: Any) -> Any:
    """Predict for one batch."""
    data = module.data_preprocessor(data, False)  # noqa: FBT003 - MMEngine's signature
    return _forward(module, data, "predict")


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
