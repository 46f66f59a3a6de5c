"""Plain attributes of a module that is repeated, such as counters and how far a table is filled."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import nn

__all__ = ["PlainAttributes"]


def _numbers_of_numpy() -> set[type]:
    numpy: Any = sys.modules.get("numpy")  # torch has imported it, if there is one
    if numpy is None:
        return set()
    number = (numpy.number, numpy.bool_)
    return {kind for kind in numpy.sctypeDict.values() if issubclass(kind, number)}


# None of these can be changed itself, nor does any keep memory of a device.
_PLAIN = frozenset((
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.device, torch.dtype, torch.Size),
    *_numbers_of_numpy(),
))  # fmt: skip
_MAYBE_PLAIN = _PLAIN | {tuple}
_CONTAINERS = frozenset((list, dict, set, OrderedDict, defaultdict, deque))
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_NOTHING = object()


class PlainAttributes:
    """What attributes of a module hold now, if they hold a number, a string, None or the like.

    Args:
        module: Of its parts, nothing is noted.
    """

    __slots__ = ("_attributes", "_module", "_names", "_plain")

    def __init__(self, module: nn.Module) -> None:
        # torch's older sharded wrapper notes that it has begun, and cannot begin again.
        is_sharded = "_fsdp_wrapped_module" in module._modules  # noqa: SLF001
        self._module = module
        self._attributes: dict[str, Any] = {} if is_sharded else vars(module)
        self._plain = _plain(self._attributes)
        self._names = tuple(self._attributes)

    def restore(self) -> Callable[[], None]:
        """Let what was plain be so again, and return what undoes that.

        That puts back all else that is assigned until then, and what lists, dicts and the like in
        attributes hold: what a repetition has computed keeps all that led to it.
        """
        attributes = self._attributes
        before = attributes.copy()
        contents = _contents(before)
        changed = {
            name: value
            for name, value in self._plain.items()
            if attributes.get(name, _NOTHING) is not value and not self._is_registered(name)
        }
        if tuple(before) != self._names:
            for name in _plain(before).keys() - set(self._names):
                del attributes[name]
        attributes.update(changed)

        def undo() -> None:
            for container, content in contents:
                _refill(container, content)
            if len(before) == len(attributes) and all(
                map(is_, before.values(), attributes.values())
            ):
                return
            for name in changed.keys() - before.keys():
                attributes.pop(name, None)
            for name, value in before.items():
                if attributes.get(name, _NOTHING) is not value and not self._is_registered(name):
                    attributes[name] = value

        return undo

    def _is_registered(self, name: str) -> bool:
        # What has become a parameter or a module is one: another would not be trained.
        return name in self._module._parameters or name in self._module._modules  # noqa: SLF001


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in attributes.items() if type(value) in _MAYBE_PLAIN}
    others = [
        name
        for name, value in found.items()
        if type(value) is tuple and not _PLAIN.issuperset(map(type, value))
    ]
    for name in others:
        del found[name]
    return found


def _contents(attributes: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [
        (value, value.copy())
        for name, value in attributes.items()
        if type(value) in _CONTAINERS and name not in _OF_EVERY_MODULE
    ]


def _refill(container: Any, content: Any) -> None:
    pairs = [(container, content)]
    if isinstance(content, dict):
        pairs.append((container.values(), content.values()))
    if len(container) != len(content) or not all(all(map(is_, *pair)) for pair in pairs):
        container.clear()
        (container.extend if hasattr(container, "extend") else container.update)(content)
