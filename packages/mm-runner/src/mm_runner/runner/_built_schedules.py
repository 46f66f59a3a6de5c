"""Schedules that a training has built, and what that has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mm_runner.optim import named_wrappers

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BuiltSchedules"]


class BuiltSchedules:
    """Builds schedules, and can undo what they have set by that, such as the start of a warm-up.

    Else others over the same optimizer would begin from there.

    Args:
        optim_wrapper: A wrapper, or several.
        build: Builds the schedules.

    Attributes:
        schedules: What it returned.
    """

    def __init__(self, optim_wrapper: Any, build: Callable[[], Any]) -> None:
        self._wrapper = optim_wrapper
        self._before = _settings_of(optim_wrapper)
        try:
            self.schedules = build()
        except BaseException:  # some of them may have been built
            self._after = _settings_of(optim_wrapper)
            self.undo()
            raise
        self._after = _settings_of(optim_wrapper)

    @property
    def has_set_anything(self) -> bool:
        """Whether a setting is another one since."""
        return any(
            not _is_same(value, new[name])
            for old, new in zip(self._before, self._after, strict=True)
            for name, value in old.items()
        )

    def undo(self) -> None:
        """Let settings be as before; one that was changed later stays as it is."""
        for group, old, new in zip(_groups(self._wrapper), self._before, self._after, strict=False):
            for name, value in new.items():
                if name not in old:
                    group.pop(name, None)
                elif _is_same(group.get(name), value):
                    _set(group, name, old[name])


def _groups(optim_wrapper: Any) -> list[dict[str, Any]]:
    wrappers = named_wrappers(optim_wrapper).values()
    return [group for wrapper in wrappers for group in wrapper.param_groups]


def _settings_of(optim_wrapper: Any) -> list[dict[str, Any]]:
    return [
        {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if isinstance(value, (int, float, tuple)) or _is_number(value)
        }
        for group in _groups(optim_wrapper)
    ]


def _set(group: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):  # groups, and compiled code, may hold this very one
        group[name].copy_(value)
    else:
        group[name] = value


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
