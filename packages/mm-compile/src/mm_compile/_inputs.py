"""What a call was given, remembered in a form that says which input changed, and how."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

# Name of an input, such as ``batch['image']``, to its traits: dtype, shape, value, ...
Traits = dict[str, dict[str, Any]]


def describe_inputs(
    method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Traits:
    """Describe the inputs of a call, named as ``method`` names them."""
    try:
        named: Mapping[str, Any] = inspect.signature(method).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # no signature, or one that a decorator hides
        named = {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
    return {name: traits for key, value in named.items() for name, traits in _walk(key, value)}


def describe_change(before: Traits, after: Traits) -> str | None:
    """Say which inputs differ, and in which dimension; None if none does."""
    changes = [
        sentence
        for name in dict.fromkeys([*before, *after])
        for sentence in _changes(name, before.get(name, {}), after.get(name, {}))
    ]
    return "; ".join(changes[:4]) if changes else None


def describe_nearest_change(history: list[Traits], after: Traits) -> str | None:
    """Compare with the earlier call that is most like this one; None if one is the same."""
    changes = [describe_change(before, after) for before in reversed(history)]
    if None in changes:
        return None
    return min((change for change in changes if change), key=lambda text: text.count(";"))


def _walk(name: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, Tensor):
        yield (
            name,
            {
                "shape": tuple(value.shape),
                "dtype": value.dtype,
                "device": value.device,
                "requires_grad": value.requires_grad,
                # dynamo compiles a view of another tensor apart.
                "is a view": value._is_view(),  # noqa: SLF001 - there is no public way to ask
            },
        )
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(f"{name}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        yield name, {"length": len(value)}
        for index, item in enumerate(value):
            yield from _walk(f"{name}[{index}]", item)
    elif isinstance(value, (bool, int, float, str)) or value is None:
        yield name, {"value": value}
    else:
        yield name, {"type": type(value).__name__}


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
