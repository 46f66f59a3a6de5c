"""Check arguments of a configuration against the signature of a component."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mm_runner.errors import ConfigError, did_you_mean

from ._annotations import annotation_of, describe_annotation, fits

__all__ = ["check_arguments", "check_type", "short_repr"]

_LONGEST_REPR = 120
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# How alike a name must be to a known one to be offered in its place; and, where a component takes
# any name, to be taken for a slip.
_NEAR, _SLIP = 0.6, 0.8


def check_arguments(
    component: Callable[..., Any],
    arguments: Mapping[str, Any],
    where: str,
    *,
    name: str | None = None,
    is_partial: bool = False,
) -> None:
    """Check that ``component`` takes ``arguments``, without calling it.

    Args:
        component: A class or function.
        arguments: By name.
        where: Path of the config, for messages.
        name: What the user calls the component. Defaults to its own name.
        is_partial: Whether missing arguments are given later.

    Raises:
        ConfigError: Naming the argument that is unknown, missing or of another type by its path.
    """
    try:
        parameters = inspect.signature(component).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return
    name = name or getattr(component, "__name__", repr(component))
    known = {one.name: one for one in parameters if one.kind in _BY_NAME}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for argument in arguments:
        hint = did_you_mean(str(argument), known, cutoff=_SLIP if takes_any else _NEAR)
        if argument not in known and (hint or not takes_any):
            raise ConfigError(
                f"{where}.{argument}: unknown argument of {name}, which takes "
                f"{', '.join(known) or 'none'}.{hint}"
            )
    for parameter in () if is_partial else known.values():
        if parameter.default is parameter.empty and parameter.name not in arguments:
            raise ConfigError(
                f"{where}.{parameter.name}: {name} needs this argument; "
                f"given: {', '.join(map(repr, arguments)) or 'none'}."
            )
    for argument, value in arguments.items():
        if argument in known:
            check_type(component, known[argument], value, f"{where}.{argument}")


def check_type(
    component: Callable[..., Any], parameter: inspect.Parameter, value: Any, where: str
) -> None:
    """Check one value against its parameter's annotation, or else its default.

    Raises:
        ConfigError: If it is of another type.
    """
    annotation = annotation_of(component, parameter)
    if value is None and parameter.default is None:
        return  # implicitly optional, as was once usual
    is_number = isinstance(parameter.default, (bool, int, float))
    if annotation is Any and is_number and isinstance(value, (str, Mapping)):
        annotation = type(parameter.default)
    if not fits(value, annotation):
        wanted = describe_annotation(annotation)
        raise ConfigError(f"{where}: {wanted} is needed, got {short_repr(value)}.")


def short_repr(value: object) -> str:
    """Return ``repr(value)``, shortened where it would fill the screen."""
    text = repr(value)
    return text if len(text) <= _LONGEST_REPR else f"{text[:_LONGEST_REPR]}..."
