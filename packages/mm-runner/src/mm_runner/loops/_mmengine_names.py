"""Attributes that subclasses of MMEngine's training loops read and write, under its names."""

from __future__ import annotations

from typing import Any

__all__ = ["MMEngineNames"]


class _OtherName:
    """Another name of an attribute.

    Args:
        name: Of that attribute.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, loop: Any, owner: type | None = None) -> Any:
        return self if loop is None else getattr(loop, self._name)

    def __set__(self, loop: Any, value: Any) -> None:
        setattr(loop, self._name, value)


class MMEngineNames:
    """What ``run``, ``run_epoch`` and ``run_iter`` that were written for MMEngine's loops use."""

    _runner: Any = _OtherName("runner")
    _epoch: Any = _OtherName("epoch")
    _iter: Any = _OtherName("iter")
    _max_epochs: Any = _OtherName("max_epochs")
    _max_iters: Any = _OtherName("max_iters")

    def _decide_current_val_interval(self) -> None:
        """Do nothing: ``val_interval`` is at any time the present one."""
