"""Calls of a module in a form in which its forward was traced.

While a forward is traced, its arguments stand for any value. It may ask of an optional one whether
it is there at all, and do something else then.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from torch import Tensor, nn

from ._variants import own_class

__all__ = ["CallForm", "TracedForms"]

_LONGEST_VALUE = 60


class TracedForms(NamedTuple):
    """Forms of the calls in which something holds.

    Attributes:
        left_out: Without its optional arguments.
        given: With all of them, tensors.
    """

    left_out: bool = False
    given: bool = False


class CallForm:
    """Which of the optional arguments of a module's forward a call gives.

    Attributes:
        optional: Their names and defaults.
        absent: What stands for arguments of any name, where there are none.
        is_only: Whether each call is of the same form: with one argument.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = list(inspect.signature(own_class(module).forward).parameters.values())[1:]
        self._positional = [
            one.name
            for one in parameters
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
        self.optional = {
            one.name: one.default for one in parameters if one.default is not one.empty
        }
        # As torch.fx names it.
        self.absent: dict[str, Any] = {
            f"**{one.name}": {} for one in parameters if one.kind is one.VAR_KEYWORD
        }
        self._names = {one.name for one in parameters}
        self.is_only = len(parameters) == len(self._positional) == 1 and not self.optional

    def is_one_of(self, forms: TracedForms, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a call is of one of ``forms``.

        An argument that is its default counts as left out. Only a tensor counts as given: what a
        forward asks of others, such as what they are equal to, cannot be traced. One that is not
        optional was something while it was traced, not ``None``, and none had a name of its own.
        """
        if self.is_only and len(args) == 1:  # most calls
            return forms.left_out and not _lacks(args[0])
        values = self._values(args, kwargs)
        if any(_lacks(value) for name, value in values.items() if name not in self.optional):
            return False
        if self.absent and not kwargs.keys() <= self._names:
            return False
        left_out = given = True
        for name, default in self.optional.items():
            value = values.get(name, default)
            left_out = left_out and value is default
            given = given and isinstance(value, Tensor)
        return (left_out and forms.left_out) or (given and forms.given)

    def untraced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """Return, in words, what a call gives that may make it one that was not traced."""
        return [
            f"{name}={_in_words(value)}"
            for name, value in self._values(args, kwargs).items()
            if self._may_be_untraced(name, value)
        ]

    def _may_be_untraced(self, name: str, value: Any) -> bool:
        if name in self.optional:
            return value is not self.optional[name]
        return _lacks(value) or (bool(self.absent) and name not in self._names)

    def _values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = [*self._positional, *(f"*{i}" for i in range(len(args) - len(self._positional)))]
        return {**dict(zip(names, args)), **kwargs}  # noqa: B905 - compiled, too

    def __deepcopy__(self, memo: Any) -> CallForm:
        # A default is known by its identity.
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def _lacks(value: Any) -> bool:
    """Return whether ``value`` is ``None``, or a list or tuple that holds it."""
    return value is None or (isinstance(value, (list, tuple)) and any(map(_lacks, value)))


def _in_words(value: Any) -> str:
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    return repr(value)[:_LONGEST_VALUE] if is_plain else type(value).__name__
