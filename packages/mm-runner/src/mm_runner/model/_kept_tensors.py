"""Tensors in attributes that are no buffers, such as the state of a recurrent layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn

from ._kept_attributes import is_registered
from ._noted_tensors import SMALL, Noted, is_ordinary, version_of
from ._plain_values import is_plain

__all__ = ["KeptTensors"]

_storage_of: Any = getattr(Tensor, "untyped_storage", Tensor.storage)  # since torch 2.0


class _Attribute(NamedTuple):
    module: nn.Module
    name: str
    full_name: str


class KeptTensors:
    """Tensors in attributes, and tuples of tensors there, before a forward.

    Args:
        attributes: The module of each, its name there and in the whole, and what it holds.
        buffers: All buffers, by identity: an attribute may be a second name of one.
        changing: Names of those that the forward changes in place, which is added to. Each forward
            keeps their values.
        is_copied: Whether to keep all values.
    """

    def __init__(
        self,
        attributes: Iterable[tuple[nn.Module, str, str, Any]],
        buffers: dict[int, Noted],
        changing: set[str],
        *,
        is_copied: bool,
    ) -> None:
        self._changing = changing
        self._buffers: list[tuple[_Attribute, Noted]] = []
        self._tensors: list[tuple[_Attribute, Noted]] = []
        self._tuples: list[tuple[_Attribute, tuple[Any, ...], list[int]]] = []
        found: dict[int, Noted] = {}  # one may be in several modules
        for module, name, full_name, value in attributes:
            place, key = _Attribute(module, name, full_name), id(value)
            if key in buffers:
                self._buffers.append((place, buffers[key]))
            elif not _can_be_kept(value):
                continue
            elif isinstance(value, tuple):
                self._tuples.append((place, value, _versions(value)))
            else:
                if key not in found:
                    is_kept = is_copied or full_name in changing
                    found[key] = Noted(value, is_copied=is_kept, is_watched=True)
                self._tensors.append((place, found[key]))

    def note_changes(self) -> None:
        """Learn which of them the forward changed in place."""
        for place, noted in self._tensors:
            if noted.is_changed(by_value=False):
                self._changing.add(place.full_name)

    def put(self, stand_ins: dict[int, Tensor]) -> None:
        """Let the attributes hold what they held, as far as that is known.

        Args:
            stand_ins: For the buffers, by identity of what was noted.
        """
        for place, noted in self._buffers:
            _set(place, stand_ins[id(noted)])
        changed: dict[int, Tensor] = {}
        for place, noted in self._tensors:
            if not noted.is_changed(by_value=False):
                if _can_be_kept(noted.tensor):  # it may have no memory now
                    _set(place, noted.tensor)
                continue
            self._changing.add(place.full_name)
            if noted.values is not None:
                if id(noted) not in changed:
                    changed[id(noted)] = noted.stand_in()
                _set(place, changed[id(noted)])
        for place, values, versions in self._tuples:
            if _versions(values) == versions and _can_be_kept(values):
                _set(place, values)


def _can_be_kept(value: Any) -> bool:
    """Return whether keeping ``value`` until the backward pass keeps next to no memory."""
    if isinstance(value, tuple):
        return all(_can_be_kept(one) if type(one) is Tensor else is_plain(one) for one in value)
    # What needs gradients is a loss or an output that was left there, and leads to all that it
    # was computed from, or is a part of sharded parameters, whose memory comes and goes.
    if value.requires_grad or not is_ordinary(value):
        return False
    size = value.element_size()
    return bool(value.numel() * size <= _storage_of(value).nbytes() <= SMALL * size)


def _set(place: _Attribute, value: Any) -> None:
    if not is_registered(place.module, place.name):
        vars(place.module)[place.name] = value


def _versions(values: tuple[Any, ...]) -> list[int]:
    return [version_of(one) for one in values if type(one) is Tensor]
