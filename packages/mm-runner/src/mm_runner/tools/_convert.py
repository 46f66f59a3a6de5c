"""Conversion of MMEngine's checkpoints to ours."""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mm_runner._torch_private import read_with
from mm_runner._untrusted import check_nesting
from mm_runner.checkpoint import (
    FORMAT_VERSION,
    clean_name,
    first_line,
    plain,
    renamed,
    save_checkpoint_file,
)
from mm_runner.checkpoint._reading import check_file, damaged
from mm_runner.errors import CheckpointError

from ._foreign_pickle import ForeignNameError, ForeignUnpickler, Inert

__all__ = ["Conversion", "convert_mmengine_checkpoint"]

_MAPPINGS = ("ConfigDict", ".Dict", "defaultdict", ".Counter")
_DROP = object()
# What MMEngine, MMPretrain and MMDetection note in a group, and no optimizer reads.
_NOTES = {
    *("params", "param_names", "param_name"),
    *("lr_mult", "decay_mult", "lr_scale", "group_name", "layer_id"),
}


@dataclass(frozen=True)
class Conversion:
    """Result of a conversion.

    Args:
        path: The file that was written.
        epoch: Epochs done; ``None`` if the checkpoint does not say.
        iter: Steps done; likewise.
        keys: The entries of the new file.
        left_out: Kind of each object that was left out, by its path.
    """

    path: Path
    epoch: int | None
    iter: int | None
    keys: list[str]
    left_out: dict[str, str] = field(default_factory=dict)


def convert_mmengine_checkpoint(
    source: str | os.PathLike[str], target: str | os.PathLike[str]
) -> Conversion:
    """Read a checkpoint that MMEngine wrote, and write it as one of mm-runner.

    Weights, the optimizer's state, averaged weights and the plain part of ``meta`` are taken over;
    numbers of NumPy become Python's, its arrays are left out. Of MMEngine's own objects only
    the data is read. No code in the file is run and neither MMEngine nor NumPy is needed; a file
    that names anything else is refused.

    Args:
        source: MMEngine's file, or a file of weights alone.
        target: The file to write; it may be ``source``.

    Returns:
        The keys of the new file, and what was left out.

    Raises:
        CheckpointError: If ``source`` is absent, damaged, or names code to be run.
        CheckpointWriteError: If ``target`` cannot be written.

    Example:
        >>> convert_mmengine_checkpoint("epoch_12.pth", "work_dir/epoch_12.pth")  # doctest: +SKIP
    """
    source, target = Path(source), Path(target)
    left_out: dict[str, str] = {}
    content = _read(source)
    if content.pop("message_hub", None) is not None:  # scalars.jsonl begins anew
        left_out["message_hub"] = "MMEngine's logs"
    try:
        checkpoint = _arrange(_convert(content, "checkpoint", left_out))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{source} cannot be converted: its entries are not those of a checkpoint of MMEngine "
            f"({type(error).__name__}: {first_line(error)})."
        ) from error
    save_checkpoint_file(plain(checkpoint), target)
    meta = checkpoint["meta"]
    return Conversion(target, meta.get("epoch"), meta.get("iter"), list(checkpoint), left_out)


def _read(path: Path) -> dict[Any, Any]:
    is_archive = check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # torch 2.0, of itself
            content = read_with(ForeignUnpickler, path, is_archive=is_archive)
        check_nesting(content, path.stat().st_size, _values_in)
    except CheckpointError:
        raise
    except ForeignNameError as error:
        raise CheckpointError(
            f"{path} is refused, and nothing in it was run: {first_line(error)} Save its "
            "state_dict again with torch.save, in a program that trusts it."
        ) from error
    except Exception as error:  # damaged or contrived bytes make the reader fail in any way
        raise damaged(path, error) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a dict.")
    return content


def _values_in(value: Any) -> list[Any] | None:
    if not isinstance(value, Inert):
        return None
    return [*value.arguments, value.entries, value.elements, value.state]


def _arrange(content: dict[Any, Any]) -> dict[str, Any]:
    """Return the entries under the names, and with the ones, that mm-runner's have."""
    if "state_dict" not in content and not any(isinstance(v, dict) for v in content.values()):
        content = {"state_dict": content}  # weights alone
    for key in ("meta", "state_dict"):
        if not isinstance(content.get(key, {}), dict):
            raise TypeError(f"{key} is a {type(content[key]).__name__}, not a dict")
    meta = dict(content.get("meta", {}))
    for key in [key for key in meta if key.startswith("mmengine")]:
        meta.setdefault("versions", {})[key] = str(meta.pop(key))
    if "state_dict" in content:
        weights = content["state_dict"]
        content["state_dict"] = renamed(weights, lambda name: clean_name(str(name)))
    if "param_schedulers" in content:
        content["param_schedulers"] = _schedules(content["param_schedulers"])
    if isinstance(content.get("optimizer"), dict):
        content["optimizer"] = _merge_groups(content["optimizer"])
    return {**content, "meta": {**meta, "format_version": FORMAT_VERSION}}


def _merge_groups(optimizer: dict[str, Any]) -> dict[str, Any]:
    """Merge groups of equal settings, as mm-runner builds them.

    Under a ``paramwise_cfg`` MMEngine makes a group for each parameter. Several optimizers, by
    name, are merged each for itself.
    """
    groups = optimizer.get("param_groups")
    if not isinstance(groups, list):
        return {
            name: _merge_groups(one) if isinstance(one, dict) else one
            for name, one in optimizer.items()
        }
    merged: list[tuple[dict[str, Any], list[int]]] = []
    for group in groups:
        settings = {key: one for key, one in group.items() if key not in _NOTES}
        for known, members in merged:
            if known == settings and len(groups) > 1:
                members.extend(group["params"])
                break
        else:
            merged.append((settings, list(group["params"])))
    order = [number for _, members in merged for number in members]
    numbers = {old: new for new, old in enumerate(order)}
    state = optimizer.get("state", {})
    return {
        **optimizer,
        "state": {numbers[old]: state[old] for old in sorted(state, key=numbers.__getitem__)},
        "param_groups": [
            {**settings, "params": [numbers[one] for one in members]}
            for settings, members in merged
        ],
    }


def _schedules(states: Any) -> Any:
    """Return how far each schedule has come; the values it set are in the optimizer's state."""
    if isinstance(states, dict) and "_global_step" in states:
        return {"count": states["_global_step"], "scheduler": _plateau(states)}
    if isinstance(states, dict):
        return {name: _schedules(one) for name, one in states.items()}
    return [_schedules(one) for one in states] if isinstance(states, list) else states


def _plateau(state: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a schedule that follows a metric has seen of it, ``None`` for any other."""
    if not {"best", "num_bad_epochs", "cooldown_counter"} <= state.keys():
        return None
    best = state["best"]
    return {
        # MMEngine begins with a value that any result is better than.
        "best": None if best is None or best == state.get("rule_worse") else float(best),
        "num_bad": state["num_bad_epochs"],
        "cooldown_left": state["cooldown_counter"],
    }


def _convert(value: Any, path: str, left_out: dict[str, str]) -> Any:
    """Return ``value`` in tensors and primitives, ``_DROP`` for what is neither."""
    if value is None or isinstance(value, (torch.Tensor, bool, int, float, str)):
        return value
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, Inert) and value.origin.endswith(_MAPPINGS):
        base = value.arguments[0] if value.arguments else {}
        value = {**(base if isinstance(base, dict) else {}), **value.entries}
    if isinstance(value, Mapping):
        pairs = [(key, _convert(v, f"{path}.{key}", left_out)) for key, v in value.items()]
        mapped = OrderedDict(
            (key, v) for key, v in pairs if v is not _DROP and isinstance(key, (str, int, float))
        )
        if isinstance(value, OrderedDict):  # of a state_dict, the versions of its modules
            vars(mapped).update(vars(value))
        return mapped if vars(mapped) else dict(mapped)
    if isinstance(value, (list, tuple, set)):
        items = [_convert(v, f"{path}[{index}]", left_out) for index, v in enumerate(value)]
        kept = [item for item in items if item is not _DROP]
        return tuple(kept) if isinstance(value, tuple) else kept
    left_out[path.removeprefix("checkpoint.")] = getattr(value, "origin", type(value).__name__)
    return _DROP
