"""One file of a configuration, as it stands: YAML, JSON or Python."""

from __future__ import annotations

import ast
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from mm_runner.errors import ConfigError, MMRunnerError

from ._config_dict import ConfigDict
from ._custom_imports import importable_folder
from ._substitution import BracesToText, quote_braces, substitute

__all__ = ["BASE", "SUFFIXES", "read_file"]

BASE = "_base_"
SUFFIXES = (".py", ".yaml", ".yml", ".json")

# What a file of Python imports or defines to compute its values with.
_HELPERS = (ModuleType, FunctionType, BuiltinFunctionType, type)

# Gives what the file inherits, for the value of its key _base_.
InheritFrom = Callable[[Any], dict[str, Any]]


def read_file(file: Path, text: str, inherit: InheritFrom) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read one file.

    Args:
        file: Its suffix says what it is; Python is executed, and so has to be trusted.
        text: What is in it.
        inherit: Called once, with the value of ``_base_`` or ``None``.

    Returns:
        What it inherits, and what it says itself.

    Raises:
        ConfigError: Naming the file, and the line where that is known.
    """
    if file.suffix == ".py":
        base, own = _read_python(file, text, inherit)
    else:
        parse = _parse_json if file.suffix == ".json" else _parse_yaml
        own = parse(file, quote_braces(text))
        if own is None:
            own = {}
        if not isinstance(own, dict) or not all(isinstance(key, str) for key in own):
            raise ConfigError(f"{file}: keys with values are needed at the top, got {own!r:.80}.")
        base = inherit(own.pop(BASE, None))
    try:
        return base, substitute(own, file, base)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _read_python(
    file: Path, text: str, inherit: InheritFrom
) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        tree = ast.parse(text, str(file))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise ConfigError(f"{_at(file, line)}: this is not Python: {error}") from error
    base = inherit(_take_base(file, tree))
    names: dict[str, Any] = {
        "__file__": str(file),
        "__name__": file.stem,
        BASE: ConfigDict(base),
    }
    code = compile(ast.fix_missing_locations(BracesToText().visit(tree)), str(file), "exec")
    try:
        with importable_folder(file.parent):
            exec(code, names)  # noqa: S102 - the user's own code, and documented as such
    except MMRunnerError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((one.lineno for one in reversed(frames) if one.filename == str(file)), None)
        hint = " read_base() is not known here: name the files in _base_." * ("read_base" in text)
        raise ConfigError(f"{_at(file, line)}: {type(error).__name__}: {error}.{hint}") from error
    return base, {
        name: value
        for name, value in names.items()
        if not name.startswith("_") and not isinstance(value, _HELPERS)
    }


def _take_base(file: Path, tree: ast.Module) -> Any:
    """Take the statement ``_base_ = ...`` out of ``tree``, and return its value."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == BASE for target in statement.targets
        ):
            tree.body.remove(statement)
            try:
                return ast.literal_eval(statement.value)
            except ValueError as error:
                raise ConfigError(
                    f"{_at(file, statement.lineno)}: {BASE}: text or a list of texts is needed, "
                    f"got {ast.unparse(statement.value)}."
                ) from error
    return None


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
        raise ConfigError(f"{_at(file, error.lineno)}: this is not JSON: {error.msg}") from error


def _parse_yaml(file: Path, text: str) -> Any:
    import yaml  # noqa: PLC0415 - importing mm_runner stays cheap

    from ._yaml_loader import ConfigLoader  # noqa: PLC0415

    try:
        return yaml.load(text, ConfigLoader)  # noqa: S506 - derived from the safe one
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{_at(file, line)}: this is not YAML: {problem}") from error


def _at(file: Path, line: int | None) -> str:
    return str(file) if line is None else f"{file}:{line}"
