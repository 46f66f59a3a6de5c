"""Merge configurations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from typing import Any

from mm_runner.errors import ConfigError, did_you_mean

__all__ = ["DELETE", "copy_containers", "merge", "merge_options", "without_delete"]

DELETE = "_delete_"


def merge(
    base: Any, child: Mapping[str, Any], where: str = "", *, replaces: bool = False
) -> dict[str, Any]:
    """Return ``child`` merged over ``base``; ``replaces`` lets a dict replace what is no dict."""
    merged = copy_containers(dict(base))
    for key, value in child.items():
        path = f"{where}.{key}" if where else str(key)
        if not isinstance(value, Mapping):
            merged[key] = value
        elif value.get(DELETE, False) or merged.get(key) is None:
            merged[key] = without_delete(value)
        elif isinstance(merged[key], Mapping):
            merged[key] = merge(merged[key], value, path, replaces=replaces)
        elif replaces:
            merged[key] = without_delete(value)
        else:
            raise ConfigError(
                f"{path}: a dict stands over the inherited {merged[key]!r}; add {DELETE}=True to "
                "it to replace that."
            )
    merged.pop(DELETE, None)
    return merged  # type: ignore[no-any-return]


def copy_containers(value: Any, without: Collection[str] = ()) -> Any:
    """Return a copy of the dicts, lists, tuples and sets in ``value``, at every depth.

    What else is in them stays the same object, as much of it cannot be copied (an open file, a
    lock) or should not be (a dataset).

    Args:
        value: Of a configuration.
        without: Keys to leave out of every dict.
    """
    if isinstance(value, Mapping):
        return {
            key: copy_containers(item, without) for key, item in value.items() if key not in without
        }
    if type(value) in (list, tuple):
        return type(value)(copy_containers(item, without) for item in value)
    return copy(value) if isinstance(value, (list, set)) else value


def without_delete(value: Any) -> Any:
    """Return a copy of ``value`` without the key ``_delete_``, at every depth."""
    return copy_containers(value, {DELETE})


def merge_options(cfg: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``cfg`` with values changed by path: ``{"custom_hooks.0.interval": 5}``."""
    changed = copy_containers(dict(cfg))
    emptied = [path for path, value in options.items() if path.endswith(f".{DELETE}") and value]
    for path in emptied:  # first, wherever they stand among what is put in instead
        changed = _replace(changed, path.split(".")[:-1], {DELETE: True}, "")
    for path, value in options.items():
        if not path.endswith(f".{DELETE}"):
            changed = _replace(changed, path.split("."), value, "")
    return changed  # type: ignore[no-any-return]


def _replace(holder: Any, keys: list[str], value: Any, where: str) -> Any:
    """Return ``holder`` with the value at the path ``keys`` replaced."""
    if not keys:
        if not _goes_into(holder, value):
            return without_delete(value)
        for one, item in value.items():
            holder = holder if one == DELETE else _replace(holder, [one], item, where)
        return holder
    key, *rest = keys
    path = f"{where}.{key}" if where else key
    if holder is None:
        holder = {}
    if isinstance(holder, (list, tuple)):
        index = _index(holder, key, path)
        items = list(holder)
        items[index] = _replace(items[index], rest, value, path)
        return type(holder)(items)
    if not isinstance(holder, Mapping):
        raise ConfigError(f"{path}: {where} is {holder!r}, which has no keys to change.")
    return {**holder, key: _replace(holder.get(key), rest, value, path)}


def _goes_into(holder: Any, value: Any) -> bool:
    """Return whether ``value`` changes keys of ``holder``, or numbered items of it."""
    if not isinstance(value, Mapping) or value.get(DELETE):
        return False
    numbered = bool(value) and all(isinstance(key, str) and key.isdecimal() for key in value)
    return isinstance(holder, Mapping) or (numbered and isinstance(holder, (list, tuple)))


def _index(items: list[Any] | tuple[Any, ...], key: str, path: str) -> int:
    if not key.lstrip("-").isdecimal():
        hint = did_you_mean(key, map(str, range(len(items))))
        raise ConfigError(f"{path}: a number is needed here, it is a list of {len(items)}.{hint}")
    if not -len(items) <= int(key) < len(items):
        raise ConfigError(f"{path}: the list has {len(items)} items, counted from 0.")
    return int(key)
