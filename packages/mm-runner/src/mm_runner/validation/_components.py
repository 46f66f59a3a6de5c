"""Check components of a configuration, and the components within them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import Registry, check_arguments, check_cfg, short_repr

__all__ = [
    "GIVEN",
    "check_component",
    "check_flag",
    "check_integer",
    "check_keys",
    "check_known",
    "need_mapping",
]

# Placeholder for arguments that the run gives; fits every annotation.
GIVEN: Any = object()


def check_component(
    cfg: Mapping[str, Any],
    registry: Registry,
    where: str,
    *,
    default: str | type | None = None,
    given: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """Check a component's config, and the configs of components among its arguments.

    Args:
        cfg: ``dict(type=..., **arguments)``.
        registry: Where ``type`` is looked up, also that of what is within.
        where: Path of ``cfg`` in the configuration.
        default: The ``type`` of a config without one.
        given: Arguments that the run gives.

    Returns:
        The component.

    Raises:
        ConfigError: If ``cfg`` does not fit.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    defaults: dict[str, Any] = dict.fromkeys(given, GIVEN)
    if default is not None:
        defaults["type"] = default
    component, _ = check_cfg(cfg, registry, defaults, where=where)
    for key, value in cfg.items():
        _check_parts(value, registry, f"{where}.{key}")
    return component


def check_keys(value: Any, where: str, known: Callable[..., Any], *, name: str) -> None:
    """Check a dict whose keys are arguments of ``known``; ``None`` is an empty one.

    Raises:
        ConfigError: If it is no dict, or a key is unknown or of another type.
    """
    if value is not None:
        check_arguments(known, need_mapping(value, where), where, name=name, is_partial=True)


def check_known(value: Any, where: str, known: Iterable[str]) -> None:
    """Check the keys of a dict.

    Raises:
        ConfigError: If it is no dict, or a key is unknown.
    """
    for key in need_mapping(value, where):
        if key not in known:
            raise ConfigError(
                f"{where}.{key}: unknown key; known are {', '.join(known)}."
                f"{did_you_mean(str(key), known)}"
            )


def check_flag(cfg: Mapping[str, Any], name: str, where: str = "") -> None:
    """Check that a key, where it is given, is True or False.

    Raises:
        ConfigError: If it is not.
    """
    value = cfg.get(name)
    if value is not None and not isinstance(value, bool):
        path = f"{where}.{name}" if where else name
        raise ConfigError(f"{path}: True or False is needed, got {value!r}.")


def check_integer(
    cfg: Mapping[str, Any], name: str, where: str, *, least: int | None = None
) -> None:
    """Check that a key, where it is given, is an integer, from ``least`` on.

    Raises:
        ConfigError: If it is not.
    """
    value = cfg.get(name)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (is_integer and (least is None or value >= least)):
        kind = "an integer" if least is None else "a positive integer"
        raise ConfigError(f"{where}.{name}: {kind} is needed, got {value!r}.")


def need_mapping(value: Any, where: str, what: str = "a dict") -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping.

    Raises:
        ConfigError: If it is none.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {what} is needed, got {short_repr(value)}.")
    return value


def _check_parts(value: Any, registry: Registry, where: str) -> None:
    """Check the configs of components in an argument's value; the outer one may complete them."""
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check_parts(item, registry, f"{where}[{index}]")
    if not isinstance(value, Mapping):
        return
    part = _part(value.get("type"), registry, where)
    if part is not None:
        arguments = {key: item for key, item in value.items() if key != "type"}
        check_arguments(part, arguments, where, is_partial=True)
    for key, item in value.items():
        _check_parts(item, registry, f"{where}.{key}")


def _part(kind: Any, registry: Registry, where: str) -> Any:
    """Return the component of a type; ``None`` if another registry may have it."""
    if isinstance(kind, str) and (kind in registry.names() or ":" in kind):
        return check_cfg({"type": kind}, registry, where=where, is_partial=True)[0]
    return kind if callable(kind) else None
