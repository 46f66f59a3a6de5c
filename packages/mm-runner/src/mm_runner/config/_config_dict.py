"""A dict whose keys can be read and set as attributes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from typing_extensions import Self

from mm_runner.errors import did_you_mean

from ._merging import DELETE, copy_containers, merge, without_delete

__all__ = ["ConfigDict", "to_builtin"]


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
        plain: dict[str, Any] = to_builtin(copy_containers(self))
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


def to_builtin(value: Any) -> Any:
    """Return ``value`` with plain dicts for mappings, at every depth of dicts and lists."""
    if isinstance(value, Mapping):
        return {key: to_builtin(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(to_builtin, value))
    return value
