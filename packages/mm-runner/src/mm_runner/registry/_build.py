"""From ``dict(type=..., **arguments)`` to an object, with errors that name the key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from ._registry import Registry

__all__ = ["build_from_cfg", "call_component", "check_arguments", "check_cfg"]


def build_from_cfg(
    cfg: object,
    registry: Registry,
    default_args: Mapping[str, Any] | None = None,
    *,
    where: str | None = None,
) -> Any:
    """Build what ``cfg`` describes.

    Args:
        cfg: ``dict(type=..., **arguments)``. It is not changed.
        registry: Where a ``type`` given as text is looked up.
        default_args: Arguments that ``cfg`` may override; a ``type`` among them is the default.
        where: Path of ``cfg`` in the whole configuration, for messages.

    Returns:
        What the component returns when called with the arguments.

    Raises:
        ComponentNotFoundError: If ``type`` names nothing.
        ConfigError: If ``cfg`` is no dict, has no ``type``, or its arguments do not fit.
    """
    component, arguments = check_cfg(cfg, registry, default_args, where=where)
    return _call(component, arguments, where or registry.name)


def check_cfg(
    cfg: object,
    registry: Registry,
    default_args: Mapping[str, Any] | None = None,
    *,
    where: str | None = None,
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Check what ``cfg`` describes, without building it.

    Arguments and errors are those of :func:`build_from_cfg`.

    Returns:
        The component and the arguments to call it with.
    """
    where = where or registry.name
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"{where}: a dict with the key 'type' is needed, got {cfg!r}.")
    arguments = {**(default_args or {}), **cfg}
    kind = arguments.pop("type", None)
    if kind is None:
        raise ConfigError(
            f"{where}: the key 'type' is missing; given: {', '.join(map(repr, cfg)) or 'nothing'}. "
            f"It names a {registry.name}: {', '.join(registry.names()[:20])}."
        )
    component = registry.get(kind) if isinstance(kind, str) else kind
    if not callable(component):
        raise ConfigError(f"{where}.type: a name, a class or a function is needed, got {kind!r}.")
    check_arguments(component, arguments, where)
    return component, arguments


def call_component(component: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> Any:
    """Check ``arguments``, and call ``component`` with them.

    Raises:
        ConfigError: If they do not fit, or ``component`` refuses them with one of Python's own
            errors, whose text says what but not where.
    """
    check_arguments(component, arguments, where)
    return _call(component, arguments, where)


def _call(component: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> Any:
    try:
        return component(**arguments)
    except (TypeError, ValueError) as error:
        if type(error) not in {TypeError, ValueError}:
            raise  # an error of somebody's own says more than we could
        name = getattr(component, "__name__", repr(component))
        raise ConfigError(f"{where}: {name} refused its arguments: {error}") from error


def check_arguments(
    component: Callable[..., Any], arguments: Mapping[str, Any], where: str
) -> None:
    """Check that ``component`` takes ``arguments``, without calling it.

    Raises:
        ConfigError: Naming the unknown or missing argument by its path.
    """
    try:
        parameters = inspect.signature(component).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return
    name = getattr(component, "__name__", repr(component))
    by_name = {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for argument in arguments:
        if argument not in by_name and not takes_any:
            raise ConfigError(
                f"{where}.{argument}: unknown argument of {name}, which takes "
                f"{', '.join(by_name) or 'none'}.{did_you_mean(str(argument), by_name)}"
            )
    for parameter in by_name.values():
        if parameter.default is parameter.empty and parameter.name not in arguments:
            raise ConfigError(
                f"{where}.{parameter.name}: {name} needs this argument; "
                f"given: {', '.join(map(repr, arguments)) or 'none'}."
            )
