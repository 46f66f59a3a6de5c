"""Find the file and line that set a config key, without running the files.

The lines are kept as a tree that is like the configuration. YAML and JSON give it by the marks of
their nodes, Python by the syntax tree of its literals and names. What a call, a loop or a
comprehension computes has the line of the statement.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._config_dict import DELETE
from ._installed import find_file
from ._python import BASE, is_block, path_of, take_base
from ._substitution import write_values

__all__ = ["describe_location", "reads_name"]

_PATH = re.compile(r"(?:cfg\.)?([A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*)(?=[:\s]|$)")


class _Lines:
    """The file and line of a value, and those of the values in it, by key or index."""

    def __init__(self, file: Path, line: int, items: dict[Any, _Lines] | None = None) -> None:
        self.file, self.line, self.items = file, line, items or {}

    def copy(self) -> _Lines:
        items = {key: lines.copy() for key, lines in self.items.items()}
        return _Lines(self.file, self.line, items)

    def merge(self, other: _Lines) -> None:
        """Merge a later dict into this one, as its values are merged."""
        self.file, self.line, later = other.file, other.line, dict(other.items)
        if DELETE in later:
            self.items = {}
        for key, lines in later.items():
            own = self.items.get(key)
            is_dict = any(isinstance(one, str) for one in lines.items)
            if own is not None and own.items and is_dict:
                own.merge(lines)
            else:
                self.items[key] = lines


def describe_location(files: Sequence[Path], message: str) -> str:
    """Return ``"file:line"`` of the key whose path ``message`` begins with."""
    match = _PATH.match(message)
    if match is None or not files:
        return ""
    lines, depth = _find(files[0], match[1])
    shown = lines.file
    if shown.is_relative_to(Path.cwd()):
        shown = shown.relative_to(Path.cwd())
    return f"{shown}:{lines.line}" if depth else str(shown)


def reads_name(file: Path, name: str) -> bool:
    """Return whether ``file`` reads a top-level key: a variable, a YAML anchor, of ``_base_``."""
    try:
        text = write_values(file.read_text(encoding="utf-8"), file)
        names = ast.walk(ast.parse(text)) if file.suffix == ".py" else ()
    except (OSError, SyntaxError, ValueError):
        return False
    loaded = {one.id for one in names if isinstance(one, ast.Name) and type(one.ctx) is ast.Load}
    anchor = file.suffix != ".py" and re.search(rf"^{re.escape(name)}:\s*[&*]", text, re.MULTILINE)
    return name in loaded or f"{BASE}.{name}" in text or bool(anchor)


def _find(file: Path, path: str) -> tuple[_Lines, int]:
    """Return the lines of the last key of ``path`` that is known, and how many keys are."""
    try:
        lines = _of_file(file)
    except Exception:  # noqa: BLE001 - a message must not fail for want of its line
        return _Lines(file, 0), 0
    depth = 0
    for text in re.findall(r"[\w-]+", path):
        key = int(text) if text.isdecimal() else text
        if key not in lines.items:
            break
        lines, depth = lines.items[key], depth + 1
    return lines, depth


def _of_file(file: Path) -> _Lines:
    """Return the lines of a configuration, with those of the files that it inherits."""
    text = write_values(file.read_text(encoding="utf-8"), file)
    if file.suffix == ".py":
        tree = ast.parse(text)
        named = take_base(file, tree)[1]
    else:
        import yaml  # noqa: PLC0415 - importing mm_runner stays cheap

        named = (yaml.safe_load(text) or {}).get(BASE)
    base = _Lines(file, 0)
    for one in [named] if isinstance(named, str) else named or ():
        base.merge(_of_file(find_file(one, file.resolve().parent).resolve()))
    if file.suffix == ".py":
        names = {BASE: base}
        _Script(file, names).follow(tree.body)
        own = _Lines(file, 0, {name: names[name] for name in names if name != BASE})
    else:
        own = _of_node(file, 0, yaml.compose(text, yaml.SafeLoader))  # JSON is YAML too
    base.merge(own)
    return base


def _of_node(file: Path, line: int, node: Any) -> _Lines:
    """Return the lines of a node of YAML."""
    lines = _Lines(file, line)
    if getattr(node, "id", "") == "sequence":
        for index, one in enumerate(node.value):
            lines.items[index] = _of_node(file, one.start_mark.line + 1, one)
    elif getattr(node, "id", "") == "mapping":
        for name, value in node.value:
            own = _of_node(file, name.start_mark.line + 1, value)
            if name.value == "<<":
                lines.items = {**own.items, **lines.items}
            else:
                lines.items[name.value] = own
    return lines


class _Script:
    """Follows what the statements of a Python file set by literals and names."""

    def __init__(self, file: Path, names: dict[str, _Lines]) -> None:
        self._file, self._names = file, names

    def follow(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if is_block(statement):
                for one in statement.body:  # type: ignore[attr-defined]
                    self._inherit(one)
            elif not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                self._follow_one(statement)
                for name in ("body", "handlers", "orelse", "finalbody"):
                    self.follow(getattr(statement, name, ()))

    def _inherit(self, statement: ast.ImportFrom) -> None:
        inherited = _of_file(find_file(path_of(statement), self._file.parent).resolve()).items
        for name in statement.names:
            if name.name == "*":
                self._names.update(inherited)
            elif name.name in inherited:
                self._names[name.asname or name.name] = inherited[name.name]

    def _follow_one(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                self._assign(target, statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._assign(statement.target, statement.value)
        elif isinstance(statement, ast.AugAssign):
            self._change(statement.target, "", statement)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            method = statement.value.func
            if isinstance(method, ast.Attribute):
                self._change(method.value, method.attr, statement)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = self._value(value)
        elif isinstance(target, ast.Tuple):
            for one in target.elts:
                self._assign(one, target)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            holder, key = self._holder(target)
            if holder is not None:
                holder.items[key] = self._value(value)

    def _change(self, target: ast.expr, method: str, statement: Any) -> None:
        lines = self._look_up(target)
        if lines is None:
            return
        if method in ("update", "merge"):
            lines.merge(self._value(statement.value))
            return
        lines.file, lines.line = self._file, statement.lineno
        # The items of a list may have shifted.
        lines.items = {key: one for key, one in lines.items.items() if not isinstance(key, int)}

    def _value(self, node: ast.expr) -> _Lines:
        """Return the lines of an expression; those of a name are shared, as its value is."""
        lines = _Lines(self._file, node.lineno)
        pairs: list[tuple[Any, ast.expr]] = []
        if isinstance(node, ast.Dict):
            pairs = [
                (getattr(key, "value", None), value)
                for key, value in zip(node.keys, node.values, strict=True)
            ]
        elif isinstance(node, (ast.List, ast.Tuple)):
            pairs = list(enumerate(node.elts))
        elif isinstance(node, ast.Call):  # dict(...), or a method that takes the same
            if isinstance(node.func, ast.Attribute) or getattr(node.func, "id", "") == "dict":
                pairs = [(None, one) for one in node.args]
                pairs += [(one.arg, one.value) for one in node.keywords]
        else:
            lines = self._look_up(node) or lines
        for key, value in pairs:
            if key is None:  # **name, or dict(name)
                lines.items.update(self._value(value).copy().items)
            else:
                lines.items[key] = self._value(value)
        return lines

    def _look_up(self, node: ast.expr) -> _Lines | None:
        """Return the lines of an expression such as ``a.b[0]``."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if not isinstance(node, (ast.Attribute, ast.Subscript)):
            return None
        holder, key = self._holder(node)
        return None if holder is None else holder.items.get(key)

    def _holder(self, node: ast.Attribute | ast.Subscript) -> tuple[_Lines | None, Any]:
        """Return the lines of ``a`` in ``a.b`` or ``a["b"]``, and the key ``"b"``."""
        holder = self._look_up(node.value)
        if isinstance(node, ast.Attribute):
            return holder, node.attr
        try:
            key = ast.literal_eval(node.slice)
        except ValueError:
            return None, None
        if holder is not None and isinstance(key, int) and key < 0:
            key += len(holder.items)
        return holder, key
