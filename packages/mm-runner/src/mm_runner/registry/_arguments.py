"""Whether a component takes the arguments that a configuration has for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mm_runner.errors import ConfigError, did_you_mean

from ._annotations import annotation_of, describe_annotation, fits, fits_default

__all__ = ["check_arguments", "check_size", "check_type", "short_repr"]

_LONGEST_REPR = 120
# What torch, and the system, can count.
_LARGEST = 2**63 - 1
_OF_TORCH_OR_US = ("mm_amp", "mm_compile", "mm_dist", "mm_npu", "mm_runner", "torch")
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
        is_partial: Whether somebody else gives what is missing.

    Raises:
        ConfigError: Naming the argument that is unknown, missing or of another type by its path.
    """
    try:
        parameters = inspect.signature(component).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return
    name = name or getattr(component, "__name__", repr(component))
    known = {one.name: (component, one) for one in parameters if one.kind in _BY_NAME}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if takes_any:
        known = {**_inherited(component), **known}
    for argument in arguments:
        hint = did_you_mean(str(argument), known, cutoff=_SLIP if takes_any else _NEAR)
        if argument not in known and (hint or not takes_any):
            raise ConfigError(
                f"{where}.{argument}: unknown argument of {name}, which takes "
                f"{', '.join(known) or 'none'}.{hint}"
            )
    for parameter in () if is_partial else parameters:
        is_needed = parameter.kind in _BY_NAME and parameter.default is parameter.empty
        if is_needed and parameter.name not in arguments:
            raise ConfigError(
                f"{where}.{parameter.name}: {name} needs this argument; "
                f"given: {', '.join(map(repr, arguments)) or 'none'}."
            )
    # Others' components may take integers of any size, such as a seed of 128 bits.
    is_bounded = str(getattr(component, "__module__", "")).partition(".")[0] in _OF_TORCH_OR_US
    for argument, value in arguments.items():
        if is_bounded:
            check_size(value, f"{where}.{argument}")
        if argument in known:
            check_type(*known[argument], value, f"{where}.{argument}")


def _inherited(component: Any) -> dict[str, tuple[Any, inspect.Parameter]]:
    """Return what a class that takes any argument may pass on to those it is derived from."""
    found: dict[str, tuple[Any, inspect.Parameter]] = {}
    for parent in inspect.getmro(component)[1:-1] if inspect.isclass(component) else ():
        if "__init__" in vars(parent):
            parameters = list(inspect.signature(vars(parent)["__init__"]).parameters.values())[1:]
            for one in parameters:
                if one.kind in _BY_NAME:
                    found.setdefault(one.name, (parent, one))
            if all(one.kind is not one.VAR_KEYWORD for one in parameters):
                break
    return found


def check_type(
    component: Callable[..., Any], parameter: inspect.Parameter, value: Any, where: str
) -> None:
    """Check one value against what its parameter's annotation, or else its default, says.

    Raises:
        ConfigError: If it is of another type.
    """
    annotation = annotation_of(component, parameter)
    if value is None and parameter.default is None:
        return  # implicitly optional, as was once usual
    if fits(value, annotation):
        if annotation is not Any or fits_default(value, parameter.default):
            return
        annotation = type(parameter.default)
    wanted = describe_annotation(annotation)
    raise ConfigError(f"{where}: {wanted} is needed, got {short_repr(value)}.")


def check_size(value: Any, where: str) -> None:
    """Check that an integer, and all in a list or a dict of them, has 64 bits at most.

    Raises:
        ConfigError: If it has more.
    """
    if isinstance(value, int):
        if not -_LARGEST <= value <= _LARGEST:
            size = value.bit_length()
            # Python itself refuses to write very long ones.
            told = repr(value) if size <= _LONGEST_REPR * 3 else f"one of {size} bits"
            raise ConfigError(
                f"{where}: an integer of at most 2**63 - 1 = {_LARGEST} is needed, got {told}."
            )
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_size(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            check_size(item, f"{where}[{index}]")


def short_repr(value: object) -> str:
    """Return ``repr(value)``, shortened where it would fill the screen."""
    text = repr(value)
    return text if len(text) <= _LONGEST_REPR else f"{text[:_LONGEST_REPR]}..."
