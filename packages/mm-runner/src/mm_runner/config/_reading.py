"""Read one configuration file, YAML, JSON or Python, without its bases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mm_runner._untrusted import check_nesting
from mm_runner.errors import ConfigError

from ._location import describe_location
from ._python import BASE, at_line, read_python
from ._read_base import InheritFrom
from ._substitution import substitute, write_values

__all__ = ["BASE", "SUFFIXES", "read_file"]

SUFFIXES = (".py", ".yaml", ".yml", ".json")


def read_file(
    file: Path, text: str, inherit: InheritFrom
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Read one file.

    Args:
        file: Its suffix says what it is; Python is executed, and so has to be trusted.
        text: What is in it.
        inherit: Called with the value of ``_base_`` or ``None``, and with each file that an import
            under ``read_base()`` names.

    Returns:
        What it inherits, as it has changed that in place; what it says itself; and, of Python, its
        modules, functions and classes.

    Raises:
        ConfigError: Naming the file, and the line where that is known.
    """
    text = write_values(text, file)
    if file.suffix == ".py":
        base, own, helpers = read_python(file, text, inherit)
    else:
        parse = _parse_json if file.suffix == ".json" else _parse_yaml
        try:
            own = parse(file, text)
            check_nesting(own, len(text))
        except RecursionError:
            raise ConfigError(f"{file}: it is nested too deeply.") from None
        except ConfigError:
            raise
        except ValueError as error:  # of an integer with thousands of digits, too
            raise ConfigError(f"{file}: {error}") from error
        if own is None:
            own = {}
        if not isinstance(own, dict) or not all(isinstance(key, str) for key in own):
            raise ConfigError(f"{file}: keys with values are needed at the top, got {own!r:.80}.")
        base, helpers = inherit(own.pop(BASE, None))[0], {}
    try:
        return substitute(base, file, base), substitute(own, file, base), helpers
    except ConfigError as error:
        raise ConfigError(f"{describe_location([file], str(error)) or file}: {error}") from error


def _parse_json(file: Path, text: str) -> Any:
    def as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError(f"{file}: the key {key!r} stands twice in one object.")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=as_dict)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{at_line(file, error.lineno)}: this is not JSON: {error.msg}"
        ) from error


def _parse_yaml(file: Path, text: str) -> Any:
    import yaml  # noqa: PLC0415 - importing mm_runner stays cheap

    from ._yaml_loader import ConfigLoader  # noqa: PLC0415

    try:
        return yaml.load(text, ConfigLoader)  # noqa: S506 - derived from the safe one
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{at_line(file, line)}: this is not YAML: {problem}") from error
