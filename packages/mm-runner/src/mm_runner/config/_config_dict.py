"""A dict with attribute access, and how configurations are merged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

from typing_extensions import Self

from mm_runner.errors import ConfigError, did_you_mean

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
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _convert(value))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and name in self:
            return self[name]
        raise AttributeError(
            f"the configuration has no key {name!r}; there are "
            f"{', '.join(map(str, self)) or 'none'}.{did_you_mean(name, map(str, self))}"
        )

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
        if other.get(DELETE):
            self.clear()
        merge_into(self, other)

    def merge(self, other: Mapping[str, Any]) -> None:
        """Merge ``other`` into this dict, as :meth:`update` does."""
        self.update(other)

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Mapping):
            return NotImplemented
        united = ConfigDict(self.to_dict())
        united.update(other)
        return united

    def __ror__(self, other: Any) -> Any:
        return ConfigDict(other) | self

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

    def copy(self) -> Self:
        """Return a shallow copy."""
        return copy(self)

    def deepcopy(self) -> Self:
        """Return a copy that shares nothing with this one."""
        return deepcopy(self)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy made of plain dicts, at every depth."""
        plain: dict[str, Any] = copy_containers(self)
        return plain


def _convert(value: Any) -> Any:
    """Convert the dicts in ``value`` to ConfigDicts; other mappings stay as they are."""
    if isinstance(value, dict) and not isinstance(value, ConfigDict):
        return ConfigDict(value)
    if type(value) in (list, tuple):
        return type(value)(map(_convert, value))
    return value


def merge_into(
    target: dict[str, Any], other: Mapping[str, Any], where: str = "", *, is_strict: bool = False
) -> None:
    """Merge ``other`` into ``target`` key by key; a dict with ``_delete_=True`` replaces another.

    Where ``is_strict``, a dict may change the items of a list by their numbers, but not replace a
    list or a plain value.
    """
    for key, value in other.items():
        there, path = target.get(key), f"{where}.{key}" if where else str(key)
        is_merged = isinstance(value, Mapping) and not value.get(DELETE) and there is not None
        if is_merged and isinstance(there, dict):
            merge_into(there, value, path, is_strict=is_strict)
        elif is_merged and is_strict:
            listed = there if isinstance(there, (list, tuple)) else ()
            items = {str(index): one for index, one in enumerate(listed)}
            if not items or not value.keys() <= items.keys():
                keys = f"; keys may be 0 to {len(items) - 1}" if items else ""
                raise ConfigError(
                    f"{path}: a dict stands over the inherited {there!r}{keys}. Add {DELETE}=True "
                    "to it to replace that."
                )
            merge_into(items, value, path, is_strict=True)
            kind: Any = type(there)
            target[key] = kind(items.values())
        else:
            target[key] = copy_containers(value, {DELETE})
    target.pop(DELETE, None)


def copy_containers(value: Any, without: Collection[str] = ()) -> Any:
    """Copy the dicts (without some keys), lists, tuples and sets in ``value``, at every depth.

    What else is in them stays the same object: much of it cannot be copied, or should not be.
    """
    if isinstance(value, Mapping):
        return {
            key: copy_containers(item, without) for key, item in value.items() if key not in without
        }
    if type(value) in (list, tuple):
        return type(value)(copy_containers(item, without) for item in value)
    return copy(value) if isinstance(value, (list, set)) else value


def to_primitives(value: Any, *, tuples: bool = False) -> Any:
    """Convert ``value`` to types that every format can hold."""
    if isinstance(value, Mapping):
        plain = (bool, int, float, str, type(None))
        return {
            key if type(key) in plain else str(key): to_primitives(item, tuples=tuples)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        items = [to_primitives(item, tuples=tuples) for item in value]
        return tuple(items) if tuples and isinstance(value, tuple) else items
    for kind in (bool, int, float, str):  # YAML cannot hold a subclass
        if isinstance(value, kind):
            return kind(value)
    if value is None or isinstance(value, Path):
        return value if value is None else str(value)
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "<")
    if callable(value) and module and "<" not in name:
        return f"{module}:{name}"
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
