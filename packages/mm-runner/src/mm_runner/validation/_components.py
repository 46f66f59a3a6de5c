"""Check components of a configuration, and the components within them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import (
    Registry,
    check_cfg,
    describe_annotation,
    fits,
    short_repr,
)

__all__ = ["check_component", "check_positive", "check_section", "need_mapping"]

# Placeholder for arguments that the run gives; fits every annotation.
_GIVEN: Any = object()


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
    defaults: dict[str, Any] = dict.fromkeys(given, _GIVEN)
    if default is not None:
        defaults["type"] = default
    component, _ = check_cfg(cfg, registry, defaults, where=where)
    for key, value in cfg.items():
        _check_parts(value, registry, f"{where}.{key}")
    return component


def check_section(value: Any, where: str, known: Mapping[str, Any]) -> None:
    """Check the keys of a dict, and their values."""
    for key, item in need_mapping(value, where).items():
        if key not in known:
            raise ConfigError(
                f"{where}.{key}: unknown key; known are {', '.join(known)}."
                f"{did_you_mean(str(key), known)}"
            )
        if item is not None and not fits(item, known[key]):
            wanted = describe_annotation(known[key])
            raise ConfigError(f"{where}.{key}: {wanted} is needed, got {short_repr(item)}.")


def check_positive(cfg: Mapping[str, Any], name: str, where: str) -> None:
    """Check that a key, where it is given, is a positive integer."""
    value = cfg.get(name)
    if value is not None and not (type(value) is int and value > 0):
        raise ConfigError(f"{where}.{name}: a positive integer is needed, got {value!r}.")


def need_mapping(value: Any, where: str, what: str = "a dict") -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping."""
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
    kind = value.get("type")
    # A name that this registry does not have may be one of another's.
    if callable(kind) or (isinstance(kind, str) and (kind in registry.names() or ":" in kind)):
        check_cfg(value, registry, where=where, is_partial=True)
    for key, item in value.items():
        _check_parts(item, registry, f"{where}.{key}")
