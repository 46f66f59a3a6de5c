"""Values as they are written in files, each part with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ._merging import DELETE

__all__ = ["Entry", "Value", "merged", "shallow"]


class Entry(NamedTuple):
    """A key of a dict or an item of a list, with the place where it was written."""

    file: Path
    line: int
    value: Value


class Value:
    """What is known of a value. Names that stand for one object share it.

    Args:
        parts: Of a dict or a list that is written out; ``None`` for all else.
        constant: A text or number.
    """

    def __init__(
        self, parts: dict[str, Entry] | list[Entry] | None = None, constant: Any = None
    ) -> None:
        self.parts = parts
        self.constant = constant
        # The statement that changed it in a way that is known only when it is run.
        self.changed_at: tuple[Path, int] | None = None
        # What it is a part of, if it is not known which one.
        self.part_of: Value | None = None

    def entry(self, key: Any) -> Entry | None:
        """Return what stands at ``key``, if that is known."""
        if isinstance(self.parts, dict):
            return self.parts.get(str(key))
        if isinstance(self.parts, list) and str(key).lstrip("-").isdecimal():
            index = int(key)
            return self.parts[index] if -len(self.parts) <= index < len(self.parts) else None
        return None

    def replaces(self) -> bool:
        """Tell whether it is a dict with ``_delete_=True``."""
        given = self.parts.get(DELETE) if isinstance(self.parts, dict) else None
        return given is not None and given.value.constant is not False

    def copy(self) -> Value:
        """Return a copy that shares nothing with this one."""
        copied = Value(self.parts, self.constant)
        if isinstance(self.parts, dict):
            copied.parts = {
                key: entry._replace(value=entry.value.copy())
                for key, entry in self.parts.items()
                if key != DELETE
            }
        elif isinstance(self.parts, list):
            copied.parts = [entry._replace(value=entry.value.copy()) for entry in self.parts]
        copied.changed_at = self.changed_at
        return copied


def merged(base: Value, own: Value) -> Value:
    """Return copies of both with ``own`` put over ``base``, as a file over what it inherits."""
    if not isinstance(own.parts, dict) or own.replaces() or own.changed_at is not None:
        return own.copy()
    if not isinstance(base.parts, dict):
        united = own.copy()
        united.changed_at = base.changed_at
        return united
    parts = dict(base.copy().parts)  # type: ignore[arg-type]
    for key, entry in own.parts.items():
        value = merged(parts[key].value, entry.value) if key in parts else entry.value.copy()
        parts[key] = entry._replace(value=value)
    united = Value(parts)
    united.changed_at = base.changed_at
    return united


def shallow(value: Value) -> Value:
    """Return a copy whose parts are the same ones."""
    return Value(value.parts.copy() if value.parts is not None else None)
