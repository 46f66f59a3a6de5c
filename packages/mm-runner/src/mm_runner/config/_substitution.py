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

__all__ = ["substitute", "write_values"]

_NAME = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")
# MMEngine also has quotes within the braces.
_VARIABLE = re.compile(
    r"\{\{\s*(?P<quote>['\"]?)\s*\$(?P<name>\w+)\s*(?::\s*(?P<default>[^{}\n]*?))?\s*(?P=quote)\s*\}\}"
)
# A whole value without quotes: in Python; in YAML and JSON.
_WHOLE = {
    is_python: re.compile(
        rf"(?m)(?P<before>[{before}]\s*)(?P<value>{_VARIABLE.pattern}|{_NAME.pattern})"
        rf"(?=\s*(?:[{after}]|$))"
    )
    for is_python, before, after in ((True, r":=,(\[", r",)\]}#"), (False, r":,\[\-", r",\]}#"))
}
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def write_values(text: str, file: Path) -> str:
    """Replace unquoted variables that are whole values, and quote ``{{ name }}``.

    Unlike within quotes, ``{{$BATCH:16}}`` then is a number; likewise ``true``, ``null`` and
    ``[1, 2]`` are what they say. In Python, variables within quotes are replaced too, as the file
    may use them. Lines stay where they are.

    Raises:
        ConfigError: If a variable is neither set nor has a default.
    """
    is_python = file.suffix == ".py"

    def before(match: re.Match[str]) -> str:
        return match.string[match.string.rfind("\n", 0, match.start()) + 1 : match.start()]

    def value_of(variable: re.Match[str], match: re.Match[str]) -> str:
        return _text_of(variable, f"{file}:{match.string.count(chr(10), 0, match.start()) + 1}")

    def fill(match: re.Match[str]) -> str:
        if "#" in before(match) or any(before(match).count(quote) % 2 for quote in "'\""):
            return match[0]  # in a comment or in text
        variable, value = _VARIABLE.fullmatch(match["value"]), match["value"]
        parsed = _parse(value_of(variable, match)) if variable else value
        return match["before"] + (repr(parsed) if is_python else json.dumps(parsed))

    def fill_text(match: re.Match[str]) -> str:
        if "#" in before(match):
            return match[0]
        written = json.dumps(value_of(match, match), ensure_ascii=False)[1:-1]
        return written.replace("'", r"\'")  # for either kind of quotes

    text = _WHOLE[is_python].sub(fill, text)
    return _VARIABLE.sub(fill_text, text) if is_python else text


def substitute(value: Any, file: Path, base: Mapping[str, Any], where: str = "") -> Any:
    """Return ``value`` with names and variables in its texts replaced."""
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
    value = _VARIABLE.sub(lambda match: _text_of(match, where), value)
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
            given = f"{where}: {{{{ {name} }}}} was given"
            if not name.startswith("_base_."):
                names = f"there are {', '.join(facts)} and _base_.<path>"
                raise ConfigError(f"{given}; {names}.{did_you_mean(name, facts)}")
            keys = list(map(str, known)) if isinstance(known, Mapping) else []
            raise ConfigError(
                f"{given}; what is inherited has no {key!r} there, but "
                f"{', '.join(keys) or 'no keys'}.{did_you_mean(key, keys)}"
            )
        found = known[index]
    return copy_containers(found)


def _text_of(match: re.Match[str], where: str) -> str:
    name = match["name"]
    text = os.environ.get(name) or match["default"]
    if not text:
        raise ConfigError(
            f"{where}: {{{{${name}}}}} was given; the environment has no {name}, and no default is "
            f"given. Set the variable, or write {{{{${name}:default}}}}."
        )
    return text


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
