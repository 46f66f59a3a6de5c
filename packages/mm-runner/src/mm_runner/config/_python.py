"""Read one configuration file in Python by executing it."""

from __future__ import annotations

import ast
import traceback
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from mm_runner.errors import ConfigError, MMRunnerError

from ._config_dict import ConfigDict
from ._custom_imports import importable_folder
from ._read_base import InheritFrom, replace_base_blocks

__all__ = ["BASE", "at_line", "read_python", "take_base"]

BASE = "_base_"

# Imports and definitions of a Python file, which are no values.
_HELPERS = (ModuleType, FunctionType, BuiltinFunctionType, type)


def read_python(
    file: Path, text: str, inherit: InheritFrom
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Run ``text``.

    Args:
        file: Where it is from.
        text: Python.
        inherit: Called with each thing that it inherits.

    Returns:
        What ``_base_`` names, as the file has changed it in place; the values of the file itself,
        with those of ``read_base()``; and the modules, functions and classes, which are no values.

    Raises:
        ConfigError: Naming the file, and the line where that is known.
    """
    try:
        tree = ast.parse(text, str(file))
    except (SyntaxError, ValueError) as error:
        raise _not_python(file, error) from error
    line, base_files = take_base(file, tree)
    names: dict[str, Any] = {"__file__": str(file), "__name__": file.stem}
    if replace_base_blocks(file, tree, names, inherit) and base_files is not None:
        raise ConfigError(
            f"{at_line(file, line)}: {BASE} and read_base() both say what is inherited, and do so "
            "in different ways. Use one of them."
        )
    base = ConfigDict(inherit(base_files)[0])
    names[BASE] = base
    _run(file, text, tree, names)
    public = {name: value for name, value in names.items() if not str(name).startswith("_")}
    helpers = {name: value for name, value in public.items() if isinstance(value, _HELPERS)}
    return base, {name: public[name] for name in public if name not in helpers}, helpers


def at_line(file: Path, line: int | None) -> str:
    """Return the place for a message."""
    return str(file) if line is None else f"{file}:{line}"


def _not_python(file: Path, error: Exception) -> ConfigError:
    place = at_line(file, getattr(error, "lineno", None))
    return ConfigError(f"{place}: this is not Python: {error}")


def _run(file: Path, text: str, tree: ast.Module, names: dict[str, Any]) -> None:
    try:
        code = compile(ast.fix_missing_locations(tree), str(file), "exec")
    except SyntaxError as error:  # such as a return, which only the compiler refuses
        raise _not_python(file, error) from error
    try:
        with importable_folder(file.parent):
            exec(code, names)  # noqa: S102 - the user's own code, and documented as such
    except MMRunnerError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((one.lineno for one in reversed(frames) if one.filename == str(file)), None)
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        statement = "" if line is None else text.splitlines()[line - 1]
        raise ConfigError(f"{at_line(file, line)}: {reason}.{_hint(error, statement)}") from error


def _hint(error: Exception, statement: str) -> str:
    if isinstance(error, ImportError) and str(error.name).split(".")[0] == "mmengine":
        return (
            " mm-runner has MMEngine's components under their names: write type='EMAHook', or "
            "import them from mm_runner and mm_amp."
        )
    if "read_base" in statement or "relative import" in str(error):
        return (
            " read_base() is for 'with read_base():' at the top level of the file, and comes from "
            "mm_runner.config."
        )
    return ""


def take_base(file: Path, tree: ast.Module) -> tuple[int | None, Any]:
    """Remove the statement ``_base_ = ...`` from ``tree``, and return its line and value."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == BASE for target in statement.targets
        ):
            tree.body.remove(statement)
            # Run too, as a long path may be put together of several texts.
            code = compile(ast.Expression(statement.value), str(file), "eval")
            try:
                return statement.lineno, eval(code, {})  # noqa: S307 - as the file itself
            except Exception as error:
                raise ConfigError(
                    f"{at_line(file, statement.lineno)}: {BASE}: text or a list of texts is "
                    f"needed, got {ast.unparse(statement.value)}."
                ) from error
    return None, None
