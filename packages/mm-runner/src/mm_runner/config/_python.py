"""Execute a Python config file, with ``_base_`` and ``read_base()``."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from mm_runner.errors import ConfigError, MMRunnerError, did_you_mean

from ._config_dict import ConfigDict
from ._custom_imports import importable_folder

__all__ = [
    "BASE",
    "InheritFrom",
    "at_line",
    "is_block",
    "path_of",
    "read_base",
    "read_python",
    "take_base",
]

BASE = "_base_"

# Imports and definitions of a Python file, which are no values.
_HELPERS = (ModuleType, FunctionType, BuiltinFunctionType, type)
# Name of the function that replaces the blocks.
_BASES = "__bases__"

_HOMES = ("mm_runner.config", "mmengine.config", "mmengine")

# Returns the content of an inherited file, and its modules, functions and classes.
InheritFrom = Callable[[Any], tuple[dict[str, Any], dict[str, Any]]]


def read_python(
    file: Path, text: str, inherit: InheritFrom
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Run a file; return the keys it inherits, its own, and its modules, functions and classes."""
    try:
        tree = ast.parse(text, str(file))
    except (SyntaxError, ValueError) as error:
        raise _not_python(file, error) from error
    line, base_files = take_base(file, tree)
    names: dict[str, Any] = {"__file__": str(file), "__name__": file.stem}
    if _replace_base_blocks(file, tree, names, inherit) and base_files is not None:
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


def read_base() -> AbstractContextManager[None]:
    """Mark the imports by which a configuration in Python inherits others.

    ``from .base import *`` within the block gives all keys of ``base.py`` beside the file (``..``
    leads to the folder above), and what that imports or defines, ``from .base import model as
    backbone`` single ones; the file changes them as the values that they are: ``model.depth =
    50``, ``model.merge(dict(...))``, ``model = dict(...)``. Imports outside the block are Python's
    own, and what they give may be used as a ``type``.

    :meth:`mm_runner.config.Config.fromfile` reads such blocks, and runs nothing of them; so a
    program that comes here has not read a configuration.

    Raises:
        ConfigError: Always.

    Example:
        >>> cfg = Config.fromfile("config.py")  # doctest: +SKIP
    """
    raise ConfigError(
        "read_base() was called by a program; it is for files of configuration, which "
        "Config.fromfile(path) reads."
    )


def _replace_base_blocks(
    file: Path, tree: ast.Module, names: dict[str, Any], inherit: InheritFrom
) -> bool:
    """Replace each block in ``tree`` by a call that puts the imported values into ``names``."""
    blocks: list[list[ast.ImportFrom]] = []
    body: list[ast.stmt] = []
    for statement in tree.body:
        if is_block(statement):
            call = f"{_BASES}({len(blocks)})"
            blocks.append(_imports_of(file, statement))
            replacement = ast.parse(call).body[0]
            for node in ast.walk(replacement):
                ast.copy_location(node, statement)
            body.append(replacement)
        elif not _only_imports_read_base(statement):
            body.append(statement)
    tree.body = body
    names[_BASES] = lambda index: names.update(_values_of(file, blocks[index], inherit))
    return bool(blocks)


def is_block(statement: ast.stmt) -> bool:
    """Return whether ``statement`` is ``with read_base():``."""
    return isinstance(statement, ast.With) and any(
        isinstance(item.context_expr, ast.Call)
        and ast.unparse(item.context_expr.func) == "read_base"
        for item in statement.items
    )


def _only_imports_read_base(statement: ast.stmt) -> bool:
    """Remove ``read_base`` from an import; return whether nothing is left of it."""
    if not isinstance(statement, ast.ImportFrom) or statement.module not in _HOMES:
        return False
    statement.names = [one for one in statement.names if one.name != "read_base"]
    return not statement.names


def _imports_of(file: Path, block: Any) -> list[ast.ImportFrom]:
    for statement in block.body:
        if not isinstance(statement, ast.ImportFrom) or not statement.level or not statement.module:
            raise ConfigError(
                f"{file}:{statement.lineno}: {ast.unparse(statement)} stands in a block of "
                "read_base(). Write 'with read_base():' at the top level, and in it only "
                "'from .base import *', with as many dots as lead to the folder of base.py."
            )
    return list(block.body)


def _values_of(file: Path, imports: list[ast.ImportFrom], inherit: InheritFrom) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for statement in imports:
        path = path_of(statement)
        content, helpers = inherit(path)
        # A file uses what its base imports, as a type.
        found = {**helpers, **ConfigDict(content)}
        for name in statement.names:
            if name.name == "*":
                values.update(found)
            elif name.name in found:
                values[name.asname or name.name] = found[name.name]
            else:
                raise ConfigError(
                    f"{file}:{statement.lineno}: {name.name} is imported from {path}, which sets "
                    f"{', '.join(content) or 'nothing'}.{did_you_mean(name.name, found)}"
                )
    return values


def path_of(statement: ast.ImportFrom) -> str:
    """Return the path of the file of a relative import, from the folder of the importing file."""
    return "../" * (statement.level - 1) + str(statement.module).replace(".", "/") + ".py"
