"""Traits of a call's inputs, which say what changed between two calls."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from ._tensors import items_of
from ._torch_private import is_view

# Name of an input, such as ``batch['image']``, to its traits: dtype, shape, value, ...
Traits = dict[str, dict[str, Any]]


def describe_inputs(
    method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Traits:
    """Return the traits of a call's inputs, by the names that ``method`` gives them."""
    try:
        named: Mapping[str, Any] = inspect.signature(method).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # no signature, or one that a decorator hides
        named = {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
    return {name: traits for key, value in named.items() for name, traits in _walk(key, value)}


def describe_change(history: list[Traits], after: Traits) -> str | None:
    """Say what changed since the most similar earlier call; None if nothing did."""
    changes = [_difference(before, after) for before in reversed(history)]
    return None if [] in changes else "; ".join(min(changes, key=len)[:4])


def _walk(name: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, Tensor):
        yield (
            name,
            {
                "shape": tuple(value.shape),
                "dtype": value.dtype,
                "device": value.device,
                "requires_grad": value.requires_grad,
                # Dynamo compiles views separately.
                "is a view": is_view(value),
            },
        )
        return
    if isinstance(value, (bool, int, float, str)) or value is None:
        yield name, {"value": value}
        return
    is_container = isinstance(value, (Mapping, list, tuple))
    yield name, {"length": len(value)} if is_container else {"type": type(value).__name__}
    for item_name, _, item in items_of(name, value):
        yield from _walk(item_name, item)


def _difference(before: Traits, after: Traits) -> list[str]:
    return [
        sentence
        for name in dict.fromkeys([*before, *after])
        for sentence in _changes(name, before.get(name, {}), after.get(name, {}))
    ]


def _changes(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for trait in dict.fromkeys([*before, *after]):
        old, new = before.get(trait), after.get(trait)
        if old == new:
            continue
        if trait == "shape" and old is not None and new is not None and len(old) == len(new):
            for dimension, (was, is_now) in enumerate(zip(old, new, strict=True)):
                if was != is_now:
                    yield f"input {name!r}: dimension {dimension} was {was}, is {is_now}"
        else:
            yield f"input {name!r}: {trait} was {old!r}, is {new!r}"
