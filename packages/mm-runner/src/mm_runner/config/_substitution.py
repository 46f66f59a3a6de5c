"""Substitute ``{{ name }}`` and environment variables, ``{{$NAME:default}}``."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm_runner.errors import ConfigError, did_you_mean

from ._config_dict import copy_containers

_NAME = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")
# A name or a variable in a text; MMEngine also has quotes within the braces.
_BRACES = re.compile(
    r"\{\{\s*(?P<quote>['\"]?)\s*(?:\$(?P<variable>\w+)\s*(?::\s*(?P<default>[^{}\n]*?))?|[\w.]+)"
    r"\s*(?P=quote)\s*\}\}"
)
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def write_values(text: str, file: Path) -> str:
    """Replace variables of the environment, and quote ``{{ name }}`` where it is a whole value.

    Unlike within quotes, ``{{$BATCH:16}}`` is a number; likewise ``true``, ``null`` and ``[1, 2]``
    are what they say. Lines stay where they are.

    Raises:
        ConfigError: If a variable is neither set nor has a default.
    """
    is_python = file.suffix == ".py"

    def fill(match: re.Match[str]) -> str:
        line_begin = text.rfind("\n", 0, match.start()) + 1
        before, after = text[line_begin : match.start()], text[match.end() :].lstrip(" \t")
        if "#" in before:  # a comment
            return match[0]
        quote = next((one for one in "'\"" if before.count(one) % 2), "")
        begins = not before.strip() or before.rstrip()[-1] in ("=,:([" if is_python else ":,[-")
        is_whole = not quote and begins and after[:1] in ("", "\n", "\r", *",)]}#")
        value = match[0]
        if match["variable"]:
            value = os.environ.get(match["variable"]) or match["default"]
            if not value:
                name, line = match["variable"], text.count("\n", 0, match.start()) + 1
                raise ConfigError(
                    f"{file}:{line}: {{{{${name}}}}} was given; the environment has no {name}, and "
                    f"no default is given. Set the variable, or write {{{{${name}:default}}}}."
                )
            if is_whole:
                parsed = _parse(value)
                return repr(parsed) if is_python else json.dumps(parsed)
            if quote == "'" and not is_python:
                value = value.replace("'", "''")
            elif quote:
                escaped = json.dumps(value, ensure_ascii=False)[1:-1]
                value = escaped.replace("'", r"\'") if is_python else escaped
        return json.dumps(value) if is_whole else value

    return _BRACES.sub(fill, text)


def substitute(value: Any, file: Path, base: Mapping[str, Any], where: str = "") -> Any:
    """Return ``value`` with the names in its texts replaced."""
    if isinstance(value, Mapping):
        return {
            key: substitute(item, file, base, f"{where}.{key}" if where else str(key))
            for key, item in value.items()
        }
    if type(value) in (list, tuple):
        items = (substitute(one, file, base, f"{where}[{i}]") for i, one in enumerate(value))
        return type(value)(items)
    if not isinstance(value, str) or "{{" not in value:
        return value
    whole = _NAME.fullmatch(value)
    if whole is not None:
        return _look_up(whole[1], file, base, where)
    return _NAME.sub(lambda match: str(_look_up(match[1], file, base, where)), value)


def _look_up(name: str, file: Path, base: Mapping[str, Any], where: str) -> Any:
    facts: dict[str, Any] = {
        "fileDirname": str(file.parent),
        "fileBasename": file.name,
        "fileBasenameNoExtension": file.stem,
        "fileExtname": file.suffix,
    }
    found: Any = {**facts, "_base_": base}
    for key in name.split("."):
        known = dict(enumerate(found)) if isinstance(found, (list, tuple)) else found
        index = int(key) if key.isdecimal() else key
        if not isinstance(known, Mapping) or index not in known:
            keys = list(map(str, known)) if isinstance(known, Mapping) else []
            raise ConfigError(
                f"{where}: {{{{ {name} }}}} was given; there is no {key!r} there, but "
                f"{', '.join(keys) or 'no keys'}.{did_you_mean(key, keys)}"
            )
        found = known[index]
    return copy_containers(found)


def _parse(text: str) -> Any:
    """Parse a number, a constant or a list; return anything else as text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text  # also a set, or bytes
    return value
