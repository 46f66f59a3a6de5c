"""Plain attributes of a module that is repeated, such as counters and how far a table is filled."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import is_
from typing import Any

from torch import Tensor, nn

from ._kept_containers import CONTAINERS
from ._kept_generators import generator_kinds
from ._plain_values import PLAIN, is_plain, is_plain_kind

__all__ = ["PlainAttributes", "is_registered", "noted_kinds"]

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HOLDING = CONTAINERS | {tuple}
_WITH_TENSORS = (Tensor, tuple)
_NOTHING = object()


def noted_kinds() -> frozenset[type]:
    """Return the types of what is noted of attributes before a forward."""
    return _with_plain(generator_kinds())


@lru_cache(maxsize=2)
def _with_plain(kinds: frozenset[type]) -> frozenset[type]:
    return PLAIN.union(_WITH_TENSORS, kinds)


def is_registered(module: nn.Module, name: str) -> bool:
    """Return whether a name is now that of a parameter or a module.

    What has become one stays one: another would not be trained.
    """
    return name in module._parameters or name in module._modules  # noqa: SLF001


class PlainAttributes:
    """What attributes of a module hold now, if they hold a number, a string, None or the like.

    Args:
        module: Of its parts, nothing is noted.
        kinds: Those of ``noted_kinds``.
        others: Gets the module, name and value of each tensor, each generator of random numbers,
            and each tuple that is not plain.
    """

    __slots__ = ("_attributes", "_module", "_names", "_plain")

    def __init__(
        self,
        module: nn.Module,
        kinds: frozenset[type],
        others: list[tuple[nn.Module, str, Any]],
    ) -> None:
        # torch's older sharded wrapper notes that it has begun, and cannot begin again.
        is_sharded = "_fsdp_wrapped_module" in module._modules  # noqa: SLF001
        self._module = module
        attributes = self._attributes = {} if is_sharded else vars(module)
        self._plain = {
            name: value
            for name, value in attributes.copy().items()  # another thread may add some
            if name not in _OF_EVERY_MODULE and (type(value) in kinds or is_plain_kind(type(value)))
        }
        not_plain = [name for name, value in self._plain.items() if type(value) not in PLAIN]
        for name in not_plain:
            value = self._plain[name]
            if not is_plain(value):
                others.append((module, name, value))
                if type(value) in _WITH_TENSORS:
                    del self._plain[name]
        # A parameter that is sharded is an attribute for the time that it is gathered.
        self._names = (*attributes, *module._parameters)  # noqa: SLF001

    def restore(self, containers: list[Any]) -> Callable[[], None]:
        """Let what was plain be so again, and return what undoes that.

        That puts back all else that is assigned until then: what a repetition has computed keeps
        all that led to it.

        Args:
            containers: Gets the lists, dicts, tuples and the like that attributes hold now.
        """
        attributes = self._attributes
        before = attributes.copy()
        containers += [
            value
            for name, value in before.items()
            if name not in _OF_EVERY_MODULE
            and type(value) in _HOLDING
            and self._plain.get(name) is not value  # a tuple without any
        ]
        names = (*before, *self._module._parameters)  # noqa: SLF001
        changed = {
            name: value
            for name, value in self._plain.items()
            if attributes.get(name, _NOTHING) is not value and not is_registered(self._module, name)
        }
        if names != self._names:
            kinds = noted_kinds()
            for name in before.keys() - set(self._names):
                if type(before[name]) in kinds or is_plain_kind(type(before[name])):
                    del attributes[name]
        attributes.update(changed)

        def undo() -> None:
            if len(before) == len(attributes) and all(
                map(is_, before.values(), attributes.values())
            ):
                return
            for name in attributes.keys() - set(names):
                del attributes[name]
            for name, value in before.items():
                if attributes.get(name, _NOTHING) is not value and not is_registered(
                    self._module, name
                ):
                    attributes[name] = value

        return undo
