"""What a training keeps in memory beside its model, as far as that is sure."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import mm_dist
from mm_runner.errors import ComponentNotFoundError, ConfigError
from mm_runner.hooks import EMAHook
from mm_runner.model import AveragedWeights
from mm_runner.optim import named_wrappers
from mm_runner.registry import MODEL_WRAPPERS
from mm_runner.runner._wrapping import is_wrapped

from ._length import Length
from ._model import bytes_by_dtype
from ._optimizers import state_bytes

__all__ = ["describe_memory"]

# Those of a class derived from them are its own affair.
_WRAPPERS_WITH_BUCKETS = (
    DistributedDataParallel,
    mm_dist.MMDistributedDataParallel,
    mm_dist.MMSeparateDistributedDataParallel,
)
_MIB = 2**20
_LONGEST_REASON = 200


def describe_memory(
    cfg: Mapping[str, Any],
    model: nn.Module,
    optim_wrapper: Any,
    hooks: Iterable[Any],
    length: Length,
    notes: list[str],
    *,
    world_size: int,
    device_type: str,
) -> dict[str, dict[str, int] | None]:
    """Return bytes by dtype, ``None`` where they are not known.

    Args:
        cfg: The full configuration.
        model: Without memory, not wrapped by the run.
        optim_wrapper: Over it.
        hooks: Of the run.
        length: Of the run.
        notes: Says what is not known, or lies elsewhere.
        world_size: Processes of the run.
        device_type: Whose memory is meant.

    Raises:
        ConfigError: If an average does not fit, or would not be made in this run.
    """
    trained = [
        parameter
        for one in named_wrappers(optim_wrapper).values()
        for group in one.optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    run = SimpleNamespace(
        model=model,
        optim_wrapper=optim_wrapper,
        max_epochs=length.num_epochs,
        max_iters=length.num_steps,
    )
    return {
        "gradients": bytes_by_dtype(trained),
        "optimizer_state": state_bytes(optim_wrapper, notes),
        "averages": _averages(hooks, run, device_type, notes),
        "ddp_buckets": _buckets(cfg.get("model_wrapper_cfg") or {}, model, world_size, notes),
    }


def _averages(
    hooks: Iterable[Any], run: SimpleNamespace, device_type: str, notes: list[str]
) -> dict[str, int] | None:
    """Return what the averages of the weights take where the model is."""
    kept: list[Tensor] = []
    for hook in hooks:
        if not isinstance(hook, EMAHook):
            continue
        trial = copy.copy(hook)  # the hook may be the user's own object
        run.hooks = [trial if one is hook else one for one in hooks]
        try:
            # Not a derived class's own, which may want a whole run.
            EMAHook.before_train(trial, run)
        except Exception as error:
            if _is_told_by_training(error):
                raise
            kind = hook._cfg["type"]  # noqa: SLF001
            reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
            notes.append(f"What {getattr(kind, '__name__', kind)} keeps is not known: {reason}")
            return None
        averages: dict[str, Any] = trial.averages
        for average in averages.values():
            if not isinstance(average, AveragedWeights):
                notes.append(f"What {type(average).__name__} keeps is not known.")
                return None
            planned = average.planned_tensors()
            device = average.device
            if device is None or torch.device(device).type == device_type:
                kept += planned
                continue
            size = sum(bytes_by_dtype(planned).values()) / _MIB
            notes.append(f"The average of the weights, {size:,.2f} MiB, is kept on {device}.")
    return bytes_by_dtype(kept)


def _is_told_by_training(error: Exception) -> bool:
    """Return whether an average fails in a run too, and not only for a model without memory."""
    is_ours = isinstance(error, (ComponentNotFoundError, ConfigError))
    return is_ours and " meta " not in str(error.__cause__)


def _buckets(
    cfg: Mapping[str, Any], model: nn.Module, world_size: int, notes: list[str]
) -> dict[str, int] | None:
    """Return what DistributedDataParallel copies gradients into, to average them."""
    if world_size == 1 or is_wrapped(model):
        return {}
    kind = cfg.get("type", mm_dist.MMDistributedDataParallel)
    wrapper = MODEL_WRAPPERS.get(kind) if isinstance(kind, str) else kind
    if wrapper not in _WRAPPERS_WITH_BUCKETS:
        if inspect.isclass(wrapper) and issubclass(wrapper, _WRAPPERS_WITH_BUCKETS):
            notes.append(f"Whether {wrapper.__name__} keeps buckets of gradients is not known.")
            return None
        return {}
    if cfg.get("gradient_as_bucket_view"):
        return {}  # the gradients are the buckets
    sparse = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }
    return bytes_by_dtype(
        one for one in model.parameters() if one.requires_grad and id(one) not in sparse
    )
