"""Build components from ``dict(type=..., **arguments)``, with errors that name the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mm_runner._error_text import with_place
from mm_runner.errors import ComponentNotFoundError, ConfigError

from ._arguments import check_arguments

if TYPE_CHECKING:
    from ._registry import Registry

__all__ = [
    "build_from_cfg",
    "check_cfg",
    "holds_configs",
    "path_within",
]

# Errors of constructors that do not check their arguments.
_PYTHONS_OWN = (TypeError, ValueError, AttributeError, IndexError, KeyError)
_OUR_PACKAGES = ("mm_amp", "mm_compile", "mm_dist", "mm_npu", "mm_runner")
# Path and arguments of the component under construction.
_under_construction: ContextVar[tuple[str, Any]] = ContextVar("mm_runner_under_construction")


def build_from_cfg(
    cfg: object,
    registry: Registry,
    default_args: Mapping[str, Any] | None = None,
    *,
    where: str | None = None,
) -> Any:
    """Call the component that ``cfg`` names with its arguments, and return the result.

    Args:
        cfg: ``dict(type=..., **arguments)``. It is not changed.
        registry: Where a ``type`` given as text is looked up.
        default_args: Arguments that ``cfg`` may override; a ``type`` among them is the default.
        where: Path of ``cfg`` in the whole configuration, for messages.

    Raises:
        ComponentNotFoundError: If ``type`` names nothing.
        ConfigError: If ``cfg`` is no dict, has no ``type``, or its arguments do not fit.
    """
    where = where or path_within(cfg) or registry.name
    component, arguments = check_cfg(cfg, registry, default_args, where=where)
    token = _under_construction.set((where, arguments))
    try:
        return component(**arguments)
    except Exception as error:
        if type(error) in _PYTHONS_OWN:
            name = getattr(component, "__name__", repr(component))
            raise ConfigError(
                f"{where}: {name} refused its arguments: {with_place(error)}"
            ) from error
        text, package = str(error), type(error).__module__.partition(".")[0]
        is_ours = package in _OUR_PACKAGES and not isinstance(error, Warning)
        if is_ours and len(error.args) == 1 and not text.startswith(where):
            begins_with_key = re.split(r"[ .=:\[]", text, maxsplit=1)[0] in arguments
            raise type(error)(f"{where}{'.' if begins_with_key else ': '}{text}") from error
        raise  # an error of somebody's own says more than we could
    finally:
        _under_construction.reset(token)


def check_cfg(
    cfg: object,
    registry: Registry,
    default_args: Mapping[str, Any] | None = None,
    *,
    where: str | None = None,
    is_partial: bool = False,
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Check what ``cfg`` describes, without building it.

    Arguments and errors are those of :func:`build_from_cfg`; ``is_partial`` is as in
    :func:`check_arguments`.

    Returns:
        The component and the arguments to call it with.
    """
    where = where or path_within(cfg) or registry.name
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"{where}: a dict with the key 'type' is needed, got {cfg!r}.")
    arguments = {**(default_args or {}), **cfg}
    component = arguments.pop("type", None)
    if component is None:
        raise ConfigError(
            f"{where}: the key 'type' is missing; given: {', '.join(map(repr, cfg)) or 'nothing'}. "
            f"It names a {registry.name}: {', '.join(registry.names()[:20])}."
        )
    if isinstance(component, str):
        try:
            component = registry.get(component)
        except (ComponentNotFoundError, ConfigError) as error:
            raise type(error)(f"{where}.type: {error}") from error
    if not callable(component):
        raise ConfigError(
            f"{where}.type: a name, a class or a function is needed, got {component!r}."
        )
    check_arguments(component, arguments, where, is_partial=is_partial)
    return component, arguments


def holds_configs(value: Any, registry: Registry) -> bool:
    """Return whether ``value`` is a list of configs, as its first item tells."""
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    kind = value[0].get("type") if is_list and isinstance(value[0], Mapping) else None
    try:
        return callable(registry.get(kind) if isinstance(kind, str) else kind)
    except Exception:  # noqa: BLE001 - importing what a sample is called may end in anything
        return False


def path_within(cfg: object) -> str | None:
    """Return the path of ``cfg`` if it is among the arguments under construction."""
    where, arguments = _under_construction.get(("", None))
    remaining = [(where, arguments)]
    while remaining:
        path, holder = remaining.pop()
        if holder is cfg:
            return path
        if isinstance(holder, Mapping):
            remaining += [(f"{path}.{key}", value) for key, value in holder.items()]
        elif isinstance(holder, (list, tuple)):
            remaining += [(f"{path}[{index}]", value) for index, value in enumerate(holder)]
    return None
