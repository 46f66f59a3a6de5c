"""Take tensors out of nested dicts, lists and tuples, and put others in their place."""

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor

from mm_dist._collectives._wire import check_tensor
from mm_dist._errors import ArgumentTypeError


def flatten(data: Any, function: str, path: str = "data") -> dict[str, Tensor]:
    """Return the tensors in nested containers by their path, e.g. ``data['loss'][0]``.

    The order does not depend on that of the keys, which can differ between ranks.

    Raises:
        ArgumentTypeError: If something else than dicts, lists, tuples and tensors is in it.
    """
    if isinstance(data, Tensor):
        check_tensor(data, function)
        return {path: data}
    found: dict[str, Tensor] = {}
    for key, value in _items(data, function, path):
        found.update(flatten(value, function, f"{path}[{key!r}]"))
    return found


def rebuild(data: Any, tensors: Iterator[Tensor]) -> Any:
    """Return containers as those of ``data``, with other tensors, given in ``flatten``'s order."""
    if isinstance(data, Tensor):
        return next(tensors)
    items = {key: rebuild(value, tensors) for key, value in _items(data)}
    return fill_like(data, items if isinstance(data, Mapping) else items.values())


def fill_like(data: Any, items: Any) -> Any:
    """Return a container of the kind of ``data``, if that is a common one, with other items."""
    if hasattr(data, "_fields"):
        return type(data)(*items)
    if isinstance(data, MutableMapping):
        copied = copy.copy(data)  # as it may need more than its items, as a defaultdict does
        copied.update(items)
        return copied
    return type(data)(items) if isinstance(data, (list, tuple, set, frozenset)) else items


def _items(data: Any, function: str = "", path: str = "") -> list[tuple[Any, Any]]:
    if isinstance(data, Mapping):
        return sorted(data.items(), key=lambda item: (type(item[0]).__name__, str(item[0])))
    if isinstance(data, (list, tuple)):
        return list(enumerate(data))
    raise ArgumentTypeError(
        f"{function} takes tensors, in nested dicts, lists and tuples if need be; {path} is "
        f"{type(data)}. Convert it with torch.as_tensor, or leave it out."
    )
