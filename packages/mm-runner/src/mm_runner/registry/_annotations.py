"""Check plain values against simple annotations: int, float, bool, str, Literal, or a union."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin

__all__ = ["annotation_of", "describe_annotation", "fits"]

# What a configuration file can hold. Objects are taken as they are.
_PLAIN = (bool, int, float, str, bytes, type(None), list, tuple, set, Mapping)
_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "None",
}
# torch's objects, which no file holds, and the plain type that stands for each in a union.
_PLAIN_FORMS = {"Tensor": float, "dtype": str}


def annotation_of(component: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the annotation of one of the component's parameters, ``Any`` if there is none."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    function = component.__init__ if inspect.isclass(component) else component
    names = {**vars(typing), **getattr(inspect.unwrap(function), "__globals__", {})}
    try:
        return eval(annotation, names)  # noqa: S307 - the component's own source
    except Exception:  # noqa: BLE001 - a name that only type checkers know
        return Any


def fits(value: Any, annotation: Any) -> bool:
    """Return whether ``value`` may be given; an annotation that is not simple takes anything."""
    kinds = _simple_kinds(annotation)
    return not kinds or not isinstance(value, _PLAIN) or any(_is_a(value, kind) for kind in kinds)


def describe_annotation(annotation: Any) -> str:
    """Describe a simple annotation, without the None that it may also take.

    Example:
        >>> describe_annotation(int | str | None)
        'an integer or text'
    """
    words: list[str] = []
    for kind in _simple_kinds(annotation):
        if get_origin(kind) is Literal:
            words += map(repr, get_args(kind))
        else:
            words.append(_WORDS[kind])
    return " or ".join(word for word in words if word != "None" or len(words) == 1)


def _simple_kinds(annotation: Any) -> list[Any]:
    """Return the members of a union, or the annotation itself; nothing if one is not simple."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    members = get_args(annotation) if is_union else [annotation]
    kinds = [type(None) if one is None else one for one in members]
    kinds = [one for one in kinds if _PLAIN_FORMS.get(getattr(one, "__name__", "")) not in kinds]
    are_simple = (
        get_origin(one) is Literal or any(one is kind for kind in _WORDS) for one in kinds
    )
    return kinds if all(are_simple) else []


def _is_a(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return any(value == one and type(value) is type(one) for one in get_args(kind))
    if kind is bool:
        return isinstance(value, bool) or value in (0, 1)
    if kind in (int, float):  # numbers of NumPy too
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind)
