"""``with read_base(): from .base import *``, as in MMEngine's configurations in pure Python."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mm_runner.errors import ConfigError, did_you_mean

from ._config_dict import ConfigDict

__all__ = ["BASES", "InheritFrom", "is_block", "path_of", "read_base", "replace_base_blocks"]

# Name of the function that replaces the blocks.
BASES = "__bases__"

_HOMES = ("mm_runner.config", "mmengine.config", "mmengine")

# Returns the content of an inherited file, and its modules, functions and classes.
InheritFrom = Callable[[Any], tuple[dict[str, Any], dict[str, Any]]]


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


def replace_base_blocks(
    file: Path, tree: ast.Module, names: dict[str, Any], inherit: InheritFrom
) -> bool:
    """Replace each block in ``tree`` by a call that puts the imported values into ``names``.

    Args:
        file: Of ``tree``.
        tree: Changed in place. Imports of ``read_base`` itself are taken out.
        names: Of the module that is run; the function :data:`BASES` is put into it.
        inherit: Reads one file.

    Returns:
        Whether there are any.

    Raises:
        ConfigError: If a block has anything but relative imports.
    """
    blocks: list[list[ast.ImportFrom]] = []
    body: list[ast.stmt] = []
    for statement in tree.body:
        if is_block(statement):
            call = f"{BASES}({len(blocks)})"
            blocks.append(_imports_of(file, statement))
            replacement = ast.parse(call).body[0]
            for node in ast.walk(replacement):
                ast.copy_location(node, statement)
            body.append(replacement)
        elif not _only_imports_read_base(statement):
            body.append(statement)
    tree.body = body
    names[BASES] = lambda index: names.update(_values_of(file, blocks[index], inherit))
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
