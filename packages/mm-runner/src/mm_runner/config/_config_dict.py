"""A dict with attribute access, and how configurations are merged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from typing import Any

from typing_extensions import Self

from mm_runner.errors import ConfigError, did_you_mean

__all__ = ["DELETE", "ConfigDict", "copy_containers", "merge", "merge_options", "without_delete"]

DELETE = "_delete_"


class ConfigDict(dict[str, Any]):
    """A dict with attribute access, at any depth.

    A key that is also the name of a method (``items``, ``copy``) is reached by ``cfg["items"]``.

    Example:
        >>> cfg = ConfigDict(model=dict(type="ResNet", depth=18))
        >>> cfg.model.depth = 50
        >>> cfg["model"]["depth"]
        50
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        # Not by update: a dict that is to replace another keeps its ``_delete_`` until it does.
        self._set_all(dict(*args, **kwargs))

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _convert(value))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self:
            raise AttributeError(
                f"the configuration has no key {name!r}; there are "
                f"{', '.join(map(str, self)) or 'none'}.{did_you_mean(name, map(str, self))}"
            )
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(f"the configuration has no key {name!r}")
        del self[name]

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set keys from a mapping, from pairs, and from keyword arguments.

        A dict is put over the one that is there key by key, as MMEngine does, unless it has
        ``_delete_=True``, which replaces that one, and the whole dict where it stands at the top.
        ``cfg |= other`` does the same, and ``cfg | other`` to a copy.

        Example:
            >>> cfg = ConfigDict(model=dict(type="ResNet", depth=18))
            >>> cfg.update(model=dict(depth=50))
            >>> cfg.model
            {'type': 'ResNet', 'depth': 50}
        """
        other = dict(*args, **kwargs)
        if other.pop(DELETE, False):
            self.clear()
            other = without_delete(other)
        for key, value in other.items():
            there = self.get(key)
            if not isinstance(there, ConfigDict) or not isinstance(value, Mapping):
                self[key] = value
            elif value.get(DELETE):
                self[key] = without_delete(value)
            elif value is not there:
                there.update(value)

    def __or__(self, other: Any) -> Any:
        return _united(self, other)

    def __ror__(self, other: Any) -> Any:
        return _united(other, self)

    def __ior__(self, other: Any) -> Self:  # type: ignore[override]
        self.update(other)
        return self

    def pop(self, key: str, default: Any = None) -> Any:
        """Remove ``key`` and return its value, or ``default`` (``None``) if it is absent."""
        return super().pop(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Set ``key`` if it is absent, and return its value."""
        if key not in self:
            self[key] = default
        return self[key]

    def merge(self, other: Mapping[str, Any]) -> None:
        """Merge ``other`` into this dict key by key, as an inheriting file does.

        A dict in ``other`` that has ``_delete_=True`` replaces the one here; ``other`` itself
        replaces all keys so. Unlike in a file, a dict also replaces what is no dict.
        """
        replaced = other.get(DELETE)
        merged = without_delete(other) if replaced else merge(self, other, replaces=True)
        self.clear()
        self._set_all(merged)

    def _set_all(self, content: Mapping[str, Any]) -> None:
        for key, value in content.items():
            self[key] = value

    def copy(self) -> Self:
        """Return a shallow copy."""
        return copy(self)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy made of plain dicts, at every depth."""
        plain: dict[str, Any] = _to_builtin(copy_containers(self))
        return plain


def _united(base: Any, other: Any) -> Any:
    if not isinstance(base, Mapping) or not isinstance(other, Mapping):
        return NotImplemented
    united = ConfigDict(copy_containers(dict(base)))
    united.update(copy_containers(dict(other)))
    return united


def _convert(value: Any) -> Any:
    """Convert the dicts in ``value`` to ConfigDicts; other mappings stay as they are."""
    if isinstance(value, dict) and not isinstance(value, ConfigDict):
        return ConfigDict(value)
    if type(value) in (list, tuple):
        return type(value)(map(_convert, value))
    return value


def _to_builtin(value: Any) -> Any:
    """Return ``value`` with plain dicts for mappings, at every depth of dicts and lists."""
    if isinstance(value, Mapping):
        return {key: _to_builtin(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_to_builtin, value))
    return value


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
