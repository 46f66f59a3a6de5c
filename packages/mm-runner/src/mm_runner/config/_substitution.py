"""Substitute ``{{ name }}``: names of the file, and values of the inherited configuration."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from mm_runner.errors import ConfigError, did_you_mean

from ._environment import fill_variables
from ._merging import copy_containers

__all__ = ["BracesToText", "substitute"]

_BRACES = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")


class BracesToText(ast.NodeTransformer):
    """Converts ``{{ name }}`` in Python, a set in a set, to the text ``"{{name}}"``."""

    @override
    def visit_Set(self, node: ast.Set) -> ast.AST:
        inner = node.elts[0]
        if len(node.elts) == 1 and isinstance(inner, ast.Set) and len(inner.elts) == 1:
            name = ast.unparse(inner.elts[0])
            if re.fullmatch(r"[\w.]+", name):
                return ast.copy_location(ast.Constant(f"{{{{{name}}}}}"), node)
        return self.generic_visit(node)


def substitute(value: Any, file: Path, base: Mapping[str, Any], where: str = "") -> Any:
    """Return ``value`` with every ``{{ name }}`` and ``{{$NAME:default}}`` in its texts replaced.

    Args:
        value: Of a file that has been read.
        file: ``fileDirname``, ``fileBasename``, ``fileBasenameNoExtension`` and ``fileExtname``
            are of it.
        base: What the file inherits: ``{{ _base_.a.b }}`` is the value there, of any type where
            nothing else stands in the text.
        where: Path of ``value`` in the configuration, for messages.

    Raises:
        ConfigError: If a name is none of these.
    """
    if isinstance(value, Mapping):
        return {
            key: substitute(item, file, base, f"{where}.{key}" if where else str(key))
            for key, item in value.items()
        }
    if type(value) in (list, tuple):
        items = (
            substitute(item, file, base, f"{where}[{index}]") for index, item in enumerate(value)
        )
        return type(value)(items)
    if not isinstance(value, str) or "{{" not in value:
        return value
    value = fill_variables(value, where)
    whole = _BRACES.fullmatch(value)
    if whole is not None:
        return _lookup(whole[1], file, base, where)
    return _BRACES.sub(lambda match: str(_lookup(match[1], file, base, where)), value)


def _lookup(name: str, file: Path, base: Mapping[str, Any], where: str) -> Any:
    facts = {
        "fileDirname": str(file.parent),
        "fileBasename": file.name,
        "fileBasenameNoExtension": file.stem,
        "fileExtname": file.suffix,
    }
    if name in facts:
        return facts[name]
    if not name.startswith("_base_."):
        raise ConfigError(
            f"{where}: {{{{ {name} }}}} was given; there are {', '.join(facts)} and _base_.<path>."
            f"{did_you_mean(name, facts)}"
        )
    found: Any = base
    for key in name.split(".")[1:]:
        if isinstance(found, (list, tuple)) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            known = list(map(str, found)) if isinstance(found, Mapping) else []
            raise ConfigError(
                f"{where}: {{{{ {name} }}}} was given; what is inherited has no {key!r} there, but "
                f"{', '.join(known) or 'no keys'}.{did_you_mean(key, known)}"
            )
    return copy_containers(found)
