"""Environment variables in a configuration: ``{{$NAME:default}}``."""

from __future__ import annotations

import ast
import json
import os
import re
from typing import Any

from typing_extensions import override

from mm_runner.errors import ConfigError

__all__ = ["Variables", "fill_variables", "fill_whole_values"]

# MMEngine also has quotes within the braces.
_VARIABLE = re.compile(
    r"\{\{\s*(?P<quote>['\"]?)\s*\$(?P<name>\w+)\s*(?::\s*(?P<default>[^{}\n]*?))?\s*(?P=quote)\s*\}\}"
)
# A whole value of YAML or JSON without quotes, which would be a mapping.
_WHOLE = re.compile(
    rf"(?m)(?P<before>[:,\[\-]\s*)(?P<value>{_VARIABLE.pattern}|\{{\{{\s*[\w.]+\s*\}}\}})"
    r"(?=\s*(?:[,\]}#]|$))"
)
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def fill_variables(text: str, where: str) -> str:
    """Replace every ``{{$NAME:default}}`` in ``text`` by the variable, or else by the default.

    Args:
        text: Of any kind.
        where: For messages.

    Raises:
        ConfigError: If a variable is neither set nor has a default.
    """
    return _VARIABLE.sub(lambda match: _text_of(match, where), text)


def fill_whole_values(text: str, where: str) -> str:
    """Replace unquoted variables in YAML or JSON that are whole values, and quote ``{{ name }}``.

    Unlike within quotes, ``{{$BATCH:16}}`` then is a number; likewise ``true``, ``null`` and
    ``[1, 2]`` are what they say.
    """

    def fill(match: re.Match[str]) -> str:
        if "#" in text[text.rfind("\n", 0, match.start()) + 1 : match.start()]:  # a comment
            return match[0]
        variable = _VARIABLE.fullmatch(match["value"])
        value = match["value"] if variable is None else _value_of(_text_of(variable, where))
        return match["before"] + json.dumps(value)

    return _WHOLE.sub(fill, text)


class Variables(ast.NodeTransformer):
    """Environment variables in a Python file, where they are no syntax.

    Args:
        where: For messages.

    Example:
        >>> variables = Variables("a.py")
        >>> tree = variables.visit(ast.parse(variables.hide("size = {{$NO_SUCH_NAME:3}}")))
        >>> ast.unparse(tree)
        'size = 3'
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._found: list[re.Match[str]] = []

    def hide(self, text: str) -> str:
        """Replace each variable, also within texts and comments, by a Python name."""

        def replace(match: re.Match[str]) -> str:
            self._found.append(match)
            return self._name(len(self._found) - 1)

        return _VARIABLE.sub(replace, text)

    @override
    def visit_Name(self, node: ast.Name) -> ast.AST:
        for index, match in enumerate(self._found):
            if node.id == self._name(index):
                value = _value_of(_text_of(match, f"{self._where}:{node.lineno}"))
                return ast.copy_location(ast.parse(repr(value), mode="eval").body, node)
        return node

    @override
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str) or "__variable_" not in node.value:
            return node
        text = node.value
        for index, match in enumerate(self._found):
            if self._name(index) in text:
                value = _text_of(match, f"{self._where}:{node.lineno}")
                text = text.replace(self._name(index), value)
        return ast.copy_location(ast.Constant(text), node)

    @staticmethod
    def _name(index: int) -> str:
        return f"__variable_{index}__"


def _text_of(match: re.Match[str], where: str) -> str:
    name, default = match["name"], match["default"]
    text = os.environ.get(name) or default
    if not text:
        raise ConfigError(
            f"{where}: {{{{${name}}}}} was given; the environment has no {name}, and no default is "
            f"given. Set the variable, or write {{{{${name}:default}}}}."
        )
    return text


def _value_of(text: str) -> Any:
    """Parse a number, a constant or a list; return anything else as text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    try:
        json.dumps(value)
    except (TypeError, ValueError):  # a set, or bytes
        return text
    return value
