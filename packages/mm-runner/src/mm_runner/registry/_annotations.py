"""Whether a value of a configuration fits the annotation of an argument.

Only what a configuration file can hold is ever refused, and only where nobody could mean it: text
for a number, a dict for a flag. Objects are taken as they are, and so is what an annotation that
cannot be read would say.
"""

from __future__ import annotations

import collections.abc
import enum
import inspect
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Complex, Integral, Real
from typing import Any, Literal, Union, get_args, get_origin

__all__ = ["annotation_of", "describe_annotation", "fits", "fits_default"]

_LITERALS = (bool, int, float, str, bytes, type(None), list, tuple, set, Mapping)
_LISTS = (list, tuple, set, frozenset)
_SEQUENCES = (*_LISTS, Sequence, Iterable, Collection)
_COLLECTIONS = (*_SEQUENCES, bytes)
_MODULES_OF_VALUES = ("builtins", "datetime", "os", "pathlib")
# Whose objects a configuration names.
_BY_NAME: tuple[Any, ...] = (type, collections.abc.Callable)
_UNIONS = (Union, types.UnionType)
_MOST_ALIASES = 20
_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    complex: "a number",
    str: "text",
    dict: "a dict",
    type(None): "None",
    Mapping: "a dict",
    **dict.fromkeys(_SEQUENCES, "a list"),
}


def annotation_of(component: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the annotation of one of the component's parameters, ``Any`` if it says nothing."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    function = component.__init__ if inspect.isclass(component) else component
    known = getattr(inspect.unwrap(function), "__globals__", {})
    # What is imported for type checkers only comes from these, as a rule.
    names = {**vars(typing), **vars(collections.abc), **known}
    try:
        return eval(annotation, names)  # noqa: S307 - the component's own source
    except Exception:  # noqa: BLE001 - a name that only type checkers know
        return Any


def fits(value: Any, annotation: Any) -> bool:
    """Return whether ``value`` may be given where ``annotation`` stands."""
    try:
        return _fits(value, annotation)
    except RecursionError:  # aliases that stand for unions of each other
        return True


def _fits(value: Any, annotation: Any) -> bool:
    annotation = _without_alias(annotation)
    if not isinstance(value, _LITERALS) or annotation is Any or annotation is object:
        return True
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in _UNIONS:
        return any(_fits(value, one) for one in _kinds_for(value, arguments))
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in arguments)
    if origin in (typing.Annotated, typing.Final, typing.ClassVar):
        return _fits(value, arguments[0])
    kind = type(None) if annotation is None else origin or annotation
    if not inspect.isclass(kind):
        return True
    return _fits_class(value, kind) and _fit_items(value, kind, arguments)


def fits_default(value: Any, default: Any) -> bool:
    """Return whether ``value`` may be given where only a default is known.

    A number by default excludes text and dicts; more cannot be told.
    """
    return not isinstance(default, (bool, int, float)) or not isinstance(value, (str, Mapping))


def describe_annotation(annotation: Any) -> str:
    """Say in words what ``annotation`` asks for, without the None that it may also take.

    Example:
        >>> describe_annotation(int | str | None)
        'an integer or text'
    """
    try:
        return _described(annotation)
    except RecursionError:  # as in fits
        return _text(annotation)


def _described(annotation: Any) -> str:
    annotation = _without_alias(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in _UNIONS:
        kinds = [one for one in arguments if one is not type(None)]
        return " or ".join(dict.fromkeys(map(_described, kinds)))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    kind = type(None) if annotation is None else origin or annotation
    if inspect.isclass(kind) and _is_dataset(kind):
        return "a dataset"
    if not inspect.isclass(kind) or kind not in _WORDS:
        return _text(annotation)
    return (
        f"{_WORDS[kind]} ({_text(annotation)})"
        if kind in _SEQUENCES and arguments
        else _WORDS[kind]
    )


def _without_alias(annotation: Any) -> Any:
    """Return what an alias made by ``type X = ...`` stands for, as numpy's ``NDArray`` is one.

    ``Any`` if that cannot be told: the names in it are looked up only now, and some are known to
    type checkers only; and aliases may stand for each other.
    """
    for _ in range(_MOST_ALIASES):
        alias = get_origin(annotation) or annotation
        if type(alias).__name__ != "TypeAliasType":
            return annotation
        try:
            annotation = _of_parameters(alias, get_args(annotation))
        except RecursionError:  # of whoever asks for what this one is made of
            raise
        except Exception:  # noqa: BLE001 - whatever the alias's own source raises
            return Any
    return Any


def _of_parameters(alias: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the value of an alias, with ``arguments`` in the places of its type parameters."""
    value = alias.__value__
    given = dict(zip(alias.__type_params__, arguments, strict=False))
    places = getattr(value, "__parameters__", ())
    return value[tuple(given[one] for one in places)] if given and places else value


def _kinds_for(value: Any, kinds: tuple[Any, ...]) -> Iterable[Any]:
    """Return those of ``kinds`` that count: a list stands for no array that may be a number."""
    if isinstance(value, _LISTS) and any(one in (int, float) for one in kinds):
        return [one for one in kinds if not _is_array(one)]
    return kinds


def _is_array(kind: Any) -> bool:
    """Return whether ``kind`` is a tensor's or an array's, which a file can give as a list only."""
    kind = _without_alias(kind)
    return hasattr(get_origin(kind) or kind, "__array__")


def _is_dataset(kind: Any) -> bool:
    """Return whether ``kind`` is torch's dataset, for which a list of samples does as well."""
    return (kind.__module__, kind.__name__) == ("torch.utils.data.dataset", "Dataset")


def _text(annotation: Any) -> str:
    if inspect.isclass(annotation) and get_origin(annotation) is None:
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")


def _fit_items(value: Any, kind: type, arguments: tuple[Any, ...]) -> bool:
    """Return whether what is in ``value`` fits the arguments of ``kind[...]``, if it has any."""
    if not arguments or kind in _BY_NAME or _is_array(kind):
        return True
    if isinstance(value, Mapping):
        return not issubclass(kind, Mapping) or all(
            _fits(key, arguments[0]) and _fits(item, arguments[-1]) for key, item in value.items()
        )
    if isinstance(value, str):
        return _fits("", arguments[0])
    if not isinstance(value, _LISTS):
        return True
    if kind is tuple and Ellipsis not in arguments:
        return len(value) == len(arguments) and all(map(_fits, value, arguments))
    return all(_fits(item, arguments[0]) for item in value)


def _fits_class(value: Any, kind: type) -> bool:
    if kind in _NARROW:
        return _NARROW[kind](value)
    if kind in _BY_NAME:
        return isinstance(value, (str, Mapping))  # a name, or a config, of one
    if isinstance(value, Mapping):
        return issubclass(kind, Mapping) or not _is_value(kind)  # or the config of one
    try:
        return isinstance(value, kind) or _stands_for(value, kind)
    except TypeError:  # a protocol that cannot be asked
        return True


def _is_value(kind: type) -> bool:
    """Return whether nobody builds an object of this class from a config."""
    module = kind.__module__
    is_plain = module == "torch" or module.partition(".")[0] in _MODULES_OF_VALUES
    return is_plain or kind in _COLLECTIONS


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _stands_for(value: Any, kind: type) -> bool:
    """Return whether a plain value commonly stands for an object of this class."""
    if _is_dataset(kind) and isinstance(value, _LISTS):
        # Only this asks for a registry, which asks for this module.
        from . import DATASETS  # noqa: PLC0415
        from ._build import holds_configs  # noqa: PLC0415

        return not holds_configs(value, DATASETS)
    if isinstance(value, _LISTS) and (_is_array(kind) or issubclass(kind, _LISTS)):
        return True  # a named tuple is one of these
    if issubclass(kind, enum.Enum):  # by its value, or its name
        return isinstance(value, (str, int)) and not isinstance(value, bool)
    if kind.__module__ == "torch" and kind.__name__ == "device":
        return isinstance(value, (str, int)) and not isinstance(value, bool)
    is_dtype = kind.__module__ == "torch" and kind.__name__ == "dtype"
    return isinstance(value, str) and (is_dtype or issubclass(kind, os.PathLike))


# What no object of another class stands for, nor the config of one.
_NARROW: dict[Any, Callable[[Any], bool]] = {
    bool: lambda value: isinstance(value, bool) or value in (0, 1),
    int: lambda value: _is_number(value, Integral),
    float: lambda value: _is_number(value, Real),
    complex: lambda value: _is_number(value, Complex),
    str: lambda value: isinstance(value, str),
    type(None): lambda value: value is None,
    # YAML and JSON have lists only.
    **dict.fromkeys(_LISTS, lambda value: isinstance(value, _LISTS)),
}
