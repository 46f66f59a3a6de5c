"""Averaged weights in a checkpoint, laid out as MMEngine does.

``state_dict`` holds the averages. ``ema_state_dict`` holds the model's own weights under
``module.<name>`` and the number of updates under ``steps`` (of several optimizer wrappers
``steps.<wrapper>``); and an average that is kept in another type than its parameter under
``average.<name>``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from mm_runner.model import AveragedWeights

__all__ = ["give_averages", "take_averages"]

_KEY = "ema_state_dict"
_OWN, _AVERAGE, _STEPS = "module.", "average.", "steps"


def give_averages(
    averages: Mapping[str, AveragedWeights], module: nn.Module, checkpoint: dict[str, Any]
) -> None:
    """Put the averages into ``checkpoint``; every process must call this.

    Without the optimizer's state nothing can go on from it, so the own weights are left out.

    Args:
        averages: By the name of their optimizer wrapper.
        module: The model without its wrapper.
        checkpoint: Its ``state_dict`` is that of the model as it is now. Of a sharded model it is
            empty on other than the first process, or spread over all; the averages are as it is.
    """
    others = _other_names(module)
    weights = checkpoint["state_dict"]
    is_whole = not any(hasattr(one, "full_tensor") for one in weights.values())
    saved: dict[str, Any] = {}
    for wrapper, average in averages.items():
        saved[f"{_STEPS}.{wrapper}" if wrapper else _STEPS] = average.steps
        if not average.has_begun:
            continue
        tensors = average.full_tensors if is_whole else average.spread_tensors
        means = tensors()
        own = tensors(own=True) if average.is_applied else weights
        for name, mean in means.items():
            own_weight = own.get(name)  # before the average takes its place
            for one in (name, *others.get(name, ())):
                if one not in weights:
                    continue
                saved[f"{_OWN}{one}"] = own_weight
                if mean.dtype != weights[one].dtype:
                    saved[f"{_AVERAGE}{one}"] = mean
                weights[one] = mean.to(weights[one].dtype)
    if averages and "optimizer" in checkpoint:
        checkpoint[_KEY] = saved


def take_averages(checkpoint: dict[str, Any]) -> dict[str, Any] | None:
    """Take the averages out of ``checkpoint``, whose ``state_dict`` is the model's own again.

    Returns:
        ``averages`` by name and ``steps`` by wrapper; ``None`` if there are none.
    """
    saved = checkpoint.pop(_KEY, None)
    if saved is None:
        return None
    weights, averages, steps = checkpoint["state_dict"], {}, {}
    for key, value in saved.items():
        name = key.removeprefix(_OWN)
        if key.startswith(_OWN) and name in weights:
            averages[name] = saved.get(f"{_AVERAGE}{name}", weights[name])
            weights[name] = value
        elif key == _STEPS or key.startswith(f"{_STEPS}."):
            steps[key.removeprefix(_STEPS).removeprefix(".")] = value
    return {"averages": averages, "steps": steps}


def _other_names(module: nn.Module) -> dict[str, list[str]]:
    """Return the further names of shared parameters by their first."""
    first: dict[int, str] = {}
    others: dict[str, list[str]] = {}

    def walk(part: nn.Module, prefix: str) -> None:
        # Not named_parameters: it leaves out what it has met before.
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):  # noqa: SLF001
            if tensor is not None:
                full = f"{prefix}{name}".replace("_orig_mod.", "")
                if first.setdefault(id(tensor), full) != full:
                    others.setdefault(first[id(tensor)], []).append(full)
        for name, child in part._modules.items():  # noqa: SLF001
            if child is not None:
                walk(child, f"{prefix}{name}.")

    walk(module, "")
    return others
