"""Conversion of MMEngine's checkpoints, whose classes are replaced by inert stand-ins."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from typing_extensions import override

from mm_runner.checkpoint import (
    FORMAT_VERSION,
    clean_name,
    first_line,
    plain,
    read_file,
    renamed,
    save_checkpoint_file,
)
from mm_runner.checkpoint._reading import TensorUnpickler
from mm_runner.errors import CheckpointError

_DROP = object()
# What MMEngine, MMPretrain and MMDetection note in a group, and no optimizer reads.
_NOTES = {
    *("params", "param_names", "param_name"),
    *("lr_mult", "decay_mult", "lr_scale", "group_name", "layer_id"),
}


class Conversion(NamedTuple):
    """Result of a conversion.

    ``epoch`` and ``iter`` are ``None`` if the checkpoint does not say. ``left_out`` has the kind of
    each object that was left out, by its path.
    """

    path: Path
    epoch: int | None
    iter: int | None
    keys: list[str]
    left_out: dict[str, str]


def convert_mmengine_checkpoint(
    source: str | os.PathLike[str], target: str | os.PathLike[str]
) -> Conversion:
    """Read a checkpoint that MMEngine wrote, and write it as one of mm-runner.

    Weights, the optimizer's state, averaged weights and the plain part of ``meta`` are taken over;
    arrays and numbers of NumPy are left out. Of MMEngine's own objects only the data is read. No
    code in the file is run and neither MMEngine nor NumPy is needed; a file that names anything
    else is refused.

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
    content: dict[Any, Any] = read_file(source, unpickler=_Unpickler)
    if content.pop("message_hub", None) is not None:  # scalars.jsonl starts from nothing
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
    """Merge groups of equal settings: with ``paramwise_cfg`` MMEngine has one per parameter."""
    groups = optimizer.get("param_groups")
    if not isinstance(groups, list):  # several optimizers by name
        return {
            name: _merge_groups(one) if isinstance(one, dict) else one
            for name, one in optimizer.items()
        }
    merged: list[dict[str, Any]] = []
    numbers: list[list[int]] = []  # of the parameters of each
    for group in groups:
        settings = {key: one for key, one in group.items() if key not in _NOTES}
        if settings not in merged:
            merged.append(settings)
            numbers.append([])
        numbers[merged.index(settings)].extend(group["params"])
    new = {old: number for number, old in enumerate(one for params in numbers for one in params)}
    state = {new[old]: one for old, one in optimizer.get("state", {}).items()}
    return {
        **optimizer,
        "state": dict(sorted(state.items())),
        "param_groups": [
            {**settings, "params": [new[one] for one in params]}
            for settings, params in zip(merged, numbers, strict=True)
        ],
    }


def _schedules(states: Any) -> Any:
    """Return the position of each schedule; the values it set are in the optimizer's state."""
    if isinstance(states, list):
        return [_schedules(one) for one in states]
    if not isinstance(states, dict):
        return states
    if "_global_step" not in states:
        return {name: _schedules(one) for name, one in states.items()}
    plateau = None
    if "num_bad_epochs" in states:
        # MMEngine begins with a value that any result is better than.
        best = states["best"] if states["best"] != states.get("rule_worse") else None
        counts = {"num_bad": "num_bad_epochs", "cooldown_left": "cooldown_counter"}
        plateau = {"best": best, **{ours: states[theirs] for ours, theirs in counts.items()}}
    return {"count": states["_global_step"], "scheduler": plateau}


def _convert(value: Any, path: str, left_out: dict[str, str]) -> Any:
    """Return ``value`` in tensors and primitives, ``_DROP`` for what is neither."""
    if value is None or isinstance(value, (torch.Tensor, bool, int, float, str)):
        return value
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, Mapping) and getattr(value, "is_mapping", True):
        pairs = [(key, _convert(v, f"{path}.{key}", left_out)) for key, v in value.items()]
        mapped = OrderedDict(
            (key, v) for key, v in pairs if v is not _DROP and isinstance(key, (str, int, float))
        )
        if type(value) is OrderedDict:  # of a state_dict, the versions of its modules
            vars(mapped).update(vars(value))
        return mapped if vars(mapped) else dict(mapped)
    if isinstance(value, (list, tuple, set)):
        items = [_convert(v, f"{path}[{index}]", left_out) for index, v in enumerate(value)]
        kept = [item for item in items if item is not _DROP]
        return tuple(kept) if isinstance(value, tuple) else kept
    left_out[path.removeprefix("checkpoint.")] = getattr(value, "origin", type(value).__name__)
    return _DROP


class _Inert(dict):  # type: ignore[type-arg]
    """Stand-in for an object of a foreign class: keeps the items of a mapping, and nothing else."""

    origin = ""
    is_mapping = False
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **_: Any) -> None:
        super().__init__(next((one for one in arguments if isinstance(one, dict)), ()))

    def __setstate__(self, state: Any) -> None:
        pass

    def append(self, element: Any) -> None:
        """Drop an element of a list."""


def _inert(origin: str) -> type[_Inert]:
    is_mapping = origin.endswith(("ConfigDict", ".Dict", "defaultdict", ".Counter"))
    return type("Inert", (_Inert,), {"origin": origin, "is_mapping": is_mapping})


# Modules whose classes and functions are read as inert data: configuration, logs, arrays.
_INERT_MODULES = ("mmengine.", "mmcv.", "addict.", "numpy.")
_INERT_NAMES = {
    ("_codecs", "encode"),  # bytes in old protocols
    ("collections", "Counter"),
    ("collections", "defaultdict"),
    *(("builtins", name) for name in ("bytes", "dict", "getattr", "int", "list")),
}


class _Unpickler(TensorUnpickler):
    """Build tensors and primitives, and stand-ins for the objects of MMEngine and NumPy."""

    with_state = (_Inert,)

    @override
    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module
        if (module, name) in _INERT_NAMES or f"{module}.".startswith(_INERT_MODULES):
            return _inert("numpy" if module.startswith("numpy") else f"{module}.{name}")
        if (module, name) == ("builtins", "set"):
            return set
        found = getattr(torch, name, None) if module == "torch" else None
        if found is torch.device or isinstance(found, torch.dtype):
            return found
        return super().find_class(module, name)
