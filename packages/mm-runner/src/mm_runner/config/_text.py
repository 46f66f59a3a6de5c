"""Write a configuration as Python, YAML or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from pprint import pformat
from typing import Any

from mm_runner.errors import ConfigError

__all__ = ["as_python", "to_primitives", "write_config"]


def as_python(cfg: Mapping[str, Any]) -> str:
    """Return ``cfg`` as assignments, one for each key."""
    for key in cfg:
        if not str(key).isidentifier():
            raise ConfigError(f"{key}: this key is no name of Python; write YAML or JSON instead.")
    return "".join(
        f"{key} = {pformat(to_primitives(value, tuples=True), width=96, sort_dicts=False)}\n"
        for key, value in cfg.items()
    )


def write_config(cfg: Mapping[str, Any], file: str | Path | None) -> str:
    """Return ``cfg`` as text, in the form that the suffix of ``file`` says, and write it there."""
    suffix = ".py" if file is None else Path(file).suffix
    if suffix == ".py":
        text = as_python(cfg)
    elif suffix in {".yaml", ".yml"}:
        import yaml  # noqa: PLC0415 - importing mm_runner stays cheap

        text = yaml.safe_dump(to_primitives(cfg), sort_keys=False, allow_unicode=True)
    elif suffix == ".json":
        text = json.dumps(to_primitives(cfg), indent=2, ensure_ascii=False) + "\n"
    else:
        raise ConfigError(f"{file}: a configuration is written as .py, .yaml, .yml or .json.")
    if file is not None:
        Path(file).write_text(text, encoding="utf-8")
    return text


def to_primitives(value: Any, *, tuples: bool = False) -> Any:
    """Convert ``value`` to types that every format can hold."""
    if isinstance(value, Mapping):
        return {_key(key): to_primitives(item, tuples=tuples) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [to_primitives(item, tuples=tuples) for item in value]
        return tuple(items) if tuples and isinstance(value, tuple) else items
    for kind in (bool, int, float, str):  # YAML cannot hold a subclass
        if isinstance(value, kind):
            return kind(value)
    if value is None or isinstance(value, Path):
        return value if value is None else str(value)
    return _name(value)


def _name(value: Any) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "<")
    if callable(value) and module and "<" not in name:
        return f"{module}:{name}"
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _key(key: Any) -> Any:
    return key if key is None or type(key) in (bool, int, float, str) else str(key)
