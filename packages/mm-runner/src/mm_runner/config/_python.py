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

BASE = "_base_"

# Imports and definitions of a Python file, which are no values.
_HELPERS = (ModuleType, FunctionType, BuiltinFunctionType, type)
_HOMES = ("mm_runner.config", "mmengine.config", "mmengine")

# Returns the content of an inherited file, and its modules, functions and classes.
InheritFrom = Callable[[Any], tuple[dict[str, Any], dict[str, Any]]]


def read_base() -> AbstractContextManager[None]:
    """Mark the imports by which a configuration in Python inherits others.

    ``from .base import *`` within the block gives all keys of ``base.py`` beside the file (``..``
    leads to the folder above), and what that imports or defines, ``from .base import model as
    backbone`` single ones, ``from package.configs.base import *`` those of an installed package's
    file. The importing file changes them as the values that they are: ``model.depth = 50``,
    ``model.merge(dict(...))``, ``model = dict(...)``. Imports outside the block are Python's own,
    and what they give may be used as a ``type``.

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


def read_python(
    file: Path, text: str, inherit: InheritFrom
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Run a file; return the keys it inherits, its own, and its modules, functions and classes."""
    try:
        tree = ast.parse(text, str(file))
    except (SyntaxError, ValueError) as error:
        raise _not_python(file, error) from error
    line, base_files = take_base(file, tree)
    if base_files is not None and any(map(is_block, tree.body)):
        raise ConfigError(
            f"{file}:{line}: {BASE} and read_base() both say what is inherited, and do so in "
            "different ways. Use one of them."
        )
    base = ConfigDict(inherit(base_files)[0])
    names: dict[str, Any] = {"__file__": str(file), "__name__": file.stem, BASE: base}
    for statement in tree.body:
        if is_block(statement):
            names.update(_imported(file, statement, inherit))
        else:
            _run(file, text, statement, names)
    public = {name: value for name, value in names.items() if not str(name).startswith("_")}
    helpers = {name: value for name, value in public.items() if isinstance(value, _HELPERS)}
    return base, {name: public[name] for name in public if name not in helpers}, helpers


def take_base(file: Path, tree: ast.Module) -> tuple[int | None, Any]:
    """Return the line and the value of ``_base_``, whose assignment is removed from ``tree``."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == BASE:
            tree.body.remove(statement)
            try:  # put together from texts, perhaps
                return statement.lineno, eval(ast.unparse(statement.value), {"__builtins__": {}})  # noqa: S307
            except Exception as error:
                raise ConfigError(
                    f"{file}:{statement.lineno}: {BASE}: text or a list of texts is needed, got "
                    f"{ast.unparse(statement.value)}."
                ) from error
    return None, None


def _not_python(file: Path, error: Exception) -> ConfigError:
    line = getattr(error, "lineno", None)
    return ConfigError(f"{file}{f':{line}' if line else ''}: this is not Python: {error}")


def _run(file: Path, text: str, statement: ast.stmt, names: dict[str, Any]) -> None:
    """Run one statement at the top level of a file."""
    if isinstance(statement, ast.ImportFrom) and statement.module in _HOMES:
        statement.names = [one for one in statement.names if one.name != "read_base"]
        if not statement.names:  # MMEngine need not be installed
            return
    try:
        code = compile(ast.Module([statement], []), str(file), "exec")
    except SyntaxError as error:  # such as a return, which only the compiler refuses
        raise _not_python(file, error) from error
    try:
        with importable_folder(file.parent):
            exec(code, names)  # noqa: S102 - the user's own code, and documented as such
    except MMRunnerError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = [one.lineno for one in frames if one.filename == str(file)][-1] or statement.lineno
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        hint = ""
        if isinstance(error, ImportError) and str(error.name).split(".")[0] == "mmengine":
            hint = (
                " mm-runner has MMEngine's components under their names: write type='EMAHook', or "
                "import them from mm_runner and mm_amp."
            )
        elif "read_base" in text.splitlines()[line - 1] or "relative import" in str(error):
            hint = (
                " read_base() is for 'with read_base():' at the top level of the file, and comes "
                "from mm_runner.config."
            )
        raise ConfigError(f"{file}:{line}: {reason}.{hint}") from error


def is_block(statement: ast.stmt) -> bool:
    """Return whether ``statement`` is ``with read_base():``."""
    return isinstance(statement, ast.With) and any(
        isinstance(item.context_expr, ast.Call)
        and ast.unparse(item.context_expr.func) == "read_base"
        for item in statement.items
    )


def _imported(file: Path, block: Any, inherit: InheritFrom) -> dict[str, Any]:
    """Return the values that a block of ``read_base()`` imports, by name."""
    values: dict[str, Any] = {}
    for statement in block.body:
        if not isinstance(statement, ast.ImportFrom) or not statement.module:
            raise ConfigError(
                f"{file}:{statement.lineno}: {ast.unparse(statement)} stands in a block of "
                "read_base(). Write 'with read_base():' at the top level, and in it only "
                "'from .base import *', with as many dots as lead to the folder of base.py, or "
                "'from package.configs.base import *'."
            )
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
    """Return the path of an imported file, as ``_base_`` takes it."""
    if not statement.level:
        return f"{str(statement.module).replace('.', '::', 1).replace('.', '/')}.py"
    return "../" * (statement.level - 1) + str(statement.module).replace(".", "/") + ".py"
