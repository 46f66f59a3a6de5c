"""Which log processor a configuration asks for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import Registry, build_from_cfg, short_repr

from ._log_processor import LogProcessor

__all__ = ["build_log_processor"]

_WHERE = "log_processor"
_OURS = LogProcessor.__name__
# Names without a dot are not looked up in it: there is one of ours, and import paths.
_IMPORT_PATHS = Registry("log processor")


def build_log_processor(value: Any) -> LogProcessor:
    """Return ``value`` if it is a :class:`LogProcessor`, else one built from its arguments.

    Args:
        value: A log processor, the arguments of one, or ``None``. A ``type`` among the arguments is
            ``"LogProcessor"`` (also MMEngine's, as ``"mmengine.LogProcessor"``), a class derived
            from :class:`LogProcessor`, or the import path of one.

    Raises:
        ConfigError: If ``type`` is something else, or the arguments do not fit.
        ComponentNotFoundError: If an import path leads to nothing.
    """
    if isinstance(value, LogProcessor):
        return value
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{_WHERE}: a dict or a LogProcessor is needed, got {short_repr(value)}.")
    cfg = dict(value or {})
    cfg["type"] = _class_of(cfg.get("type") or LogProcessor)
    built: LogProcessor = build_from_cfg(cfg, _IMPORT_PATHS, where=_WHERE)
    return built


def _class_of(kind: Any) -> Any:
    """Return the class of what ``type`` names."""
    if kind == _OURS or _is_mmengines(kind):
        return LogProcessor
    found = kind
    if isinstance(kind, str) and (":" in kind or "." in kind):
        try:
            found = _IMPORT_PATHS.get(kind)
        except LookupError as error:
            raise type(error)(f"{_WHERE}.type: {error}") from error
    if not (inspect.isclass(found) and issubclass(found, LogProcessor)):
        hint = did_you_mean(kind, [_OURS]) if isinstance(kind, str) else ""
        raise ConfigError(
            f"{_WHERE}.type: {short_repr(kind)} was given; there is {_OURS}, or give a class "
            f"derived from mm_runner.reporting.{_OURS}, or its import path "
            f"'package.module:Name'.{hint}"
        )
    return found


def _is_mmengines(kind: Any) -> bool:
    """Return whether ``kind`` is MMEngine's own: by a name with a scope, import path, or class."""
    path = f"{kind.__module__}.{kind.__qualname__}" if inspect.isclass(kind) else kind
    if not isinstance(path, str):
        return False
    parts = path.replace(":", ".").split(".")
    return parts[-1] == _OURS and (parts[0] == "mmengine" or len(parts) == 2)
