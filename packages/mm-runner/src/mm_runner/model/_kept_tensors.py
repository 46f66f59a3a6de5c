"""Tensors in attributes that are no buffers, such as the state of a recurrent layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn

from ._kept_attributes import is_registered
from ._noted_tensors import SMALL, Noted, is_ordinary
from ._plain_values import is_plain_kind

__all__ = ["KeptTensors"]

# Of entries of tuples, with those within them.
_MOST_ENTRIES = 512
_storage_of: Any = getattr(Tensor, "untyped_storage", Tensor.storage)  # since torch 2.0


class _Attribute(NamedTuple):
    module: nn.Module
    name: str
    full_name: str
    tensors: list[Noted]
    value: Any  # with these in place of the tensors


class KeptTensors:
    """Tensors in attributes, and in tuples there, before a forward.

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
        self._buffers = {id(noted) for noted in buffers.values()}
        self._attributes: list[_Attribute] = []
        found: dict[int, Noted] = {}  # one may be in several modules
        for module, name, full_name, value in attributes:
            tensors = _tensors_in(value)
            own = [one for one in tensors or () if id(one) not in buffers]
            if not tensors or not _can_be_kept(own):
                continue
            is_kept = is_copied or full_name in changing
            for one in own:
                if id(one) not in found:
                    is_part = _is_part(one)
                    found[id(one)] = Noted(
                        one, is_copied=is_kept or is_part, is_watched=not is_part
                    )
            notes = {id(one): buffers.get(id(one)) or found[id(one)] for one in tensors}
            kept = [notes[id(one)] for one in tensors]
            self._attributes.append(
                _Attribute(module, name, full_name, kept, _replaced(value, notes))
            )

    def note_changes(self) -> None:
        """Learn which of them the forward changed in place."""
        for place in self._attributes:
            if any(map(self._is_changed, place.tensors)):
                self._changing.add(place.full_name)

    def put(self, stand_ins: dict[int, Tensor]) -> None:
        """Let the attributes hold what they held, as far as that is known.

        Args:
            stand_ins: For the buffers, by identity of what was noted.
        """
        self.note_changes()
        found: dict[int, Tensor | None] = {}
        for place in self._attributes:
            for noted in place.tensors:
                key = id(noted)
                if key not in found:
                    found[key] = stand_ins[key] if key in self._buffers else self._before(noted)
            is_known = all(found[id(noted)] is not None for noted in place.tensors)
            if is_known and not is_registered(place.module, place.name):
                vars(place.module)[place.name] = _replaced(place.value, found)

    def _is_changed(self, noted: Noted) -> bool:
        if id(noted) in self._buffers or noted.tensor is None:
            return False
        return noted.is_changed(by_value=False)

    def _before(self, noted: Noted) -> Tensor | None:
        if noted.tensor is None:
            return noted.stand_in()
        if self._is_changed(noted):
            return None if noted.values is None else noted.stand_in()
        if not _has_memory(noted.tensor):  # of what was gathered, nothing is left
            return None
        # The forward may let it need gradients, for a time.
        return noted.tensor.detach() if noted.tensor.requires_grad else noted.tensor


def _tensors_in(value: Any) -> list[Tensor] | None:
    """Return the tensors in ``value``; None if something else is there, or too much."""
    tensors, todo, num_entries = [], [value], 0
    while todo:
        one = todo.pop()
        kind = type(one)
        if kind is tuple:
            num_entries += len(one)
            if num_entries > _MOST_ENTRIES:
                return None
            todo += one
        elif isinstance(one, Tensor):
            tensors.append(one)
        elif not is_plain_kind(kind):
            return None
    return tensors


def _can_be_kept(tensors: list[Tensor]) -> bool:
    """Return whether keeping ``tensors`` until the backward pass keeps next to no memory."""
    # What needs gradients is a loss or an output that was left there, and leads to all that it
    # was computed from, or is a part of sharded parameters, whose memory comes and goes.
    for one in tensors:
        if one.requires_grad or not is_ordinary(one) or not _has_memory(one):
            return False
    return sum({id(one): one.numel() for one in tensors}.values()) <= SMALL


def _is_part(tensor: Tensor) -> bool:
    """Return whether ``tensor`` keeps the memory of a larger one, as the last of many outputs."""
    return bool(_storage_of(tensor).nbytes() > SMALL * tensor.element_size())


def _has_memory(tensor: Tensor) -> bool:
    return bool(tensor.numel() * tensor.element_size() <= _storage_of(tensor).nbytes())


def _replaced(value: Any, replacements: dict[int, Any]) -> Any:
    """Return ``value`` with what stands in the place of its tensors, or of their notes."""
    if type(value) is tuple:
        return tuple(_replaced(one, replacements) for one in value)
    return replacements.get(id(value), value) if isinstance(value, (Tensor, Noted)) else value
