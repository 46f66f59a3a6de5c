"""What a forward is called with, and its repetition too."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from ._noted_tensors import version_of

__all__ = ["InputVersions", "with_copied_containers"]

# Of a subclass, nobody knows how it is copied.
_MAPPINGS = (dict, OrderedDict, defaultdict)
# What decoders of Hugging Face's fill in training, too, unless they are told not to.
_CACHES = "transformers.cache_utils"


def with_copied_containers(values: Sequence[Any]) -> list[Any]:
    """Return ``values`` with copies of the containers among them and in those, not of tensors.

    The caches of decoders count as such.
    """
    return [_copied(one) for one in values]


class InputVersions:
    """Counts of changes to the tensors among arguments, and in containers among those.

    Args:
        values: The arguments. None is kept alive: torch may move them away until they are needed.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._versions = [(weakref.ref(one), version_of(one)) for one in _tensors(values)]

    def differ(self, values: Sequence[Any]) -> bool:
        """Return whether a tensor was changed, of those that are the same in ``values``."""
        return any(
            reference() is tensor and version_of(tensor) != version
            for (reference, version), tensor in zip(self._versions, _tensors(values))  # noqa: B905
        )


def _copied(values: Any) -> Any:
    kind = type(values)
    if kind is list or kind is tuple:
        return kind(map(_copied, values))
    if kind in _MAPPINGS:
        copied = values.copy()
        for key, value in values.items():
            copied[key] = _copied(value)
        return copied
    if any(one.__module__ == _CACHES for one in kind.__mro__):
        copied = copy.copy(values)
        vars(copied).update({name: _copied(value) for name, value in vars(values).items()})
        return copied
    return values


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
