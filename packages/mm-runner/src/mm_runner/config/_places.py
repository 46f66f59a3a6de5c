"""Map config keys to the file and line that set them, without running the files.

YAML and JSON are read from the marks of their nodes, Python from the syntax tree of its literals.
What a call, a loop or a comprehension computes has the line of the statement.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._config_dict import DELETE
from ._python import BASE, is_block, path_of, take_base
from ._substitution import write_values

__all__ = ["describe_location", "reads_name", "written_in"]

_PATH = re.compile(r"(?:cfg\.)?([A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*)(?=[:\s]|$)")


class _Place(NamedTuple):
    """File and line of a value, and the places of the literals in it, by key or index."""

    file: Path
    line: int
    parts: dict[Any, _Place]


def describe_location(files: Sequence[Path], message: str) -> str:
    """Return ``"file:line"`` of the key whose path ``message`` begins with."""
    match = _PATH.match(message)
    if match is None or not files:
        return ""
    places = _places_of(files[0], re.findall(r"[\w-]+", match[1]))
    shown = places[-1].file if places else files[0]
    if shown.is_relative_to(Path.cwd()):
        shown = shown.relative_to(Path.cwd())
    return f"{shown}:{places[-1].line}" if places else str(shown)


def written_in(files: Sequence[Path], path: str) -> Path | None:
    """Return the file that sets the key ``path`` last; ``None`` where that is not known."""
    keys = path.split(".")
    places = _places_of(files[0], keys) if files else []
    return places[-1].file if len(places) == len(keys) else None


def reads_name(file: Path, name: str) -> bool:
    """Return whether ``file`` reads a top-level key: a variable of Python, or of its ``_base_``."""
    try:
        text = write_values(file.read_text(encoding="utf-8"), file)
        names = ast.walk(ast.parse(text)) if file.suffix == ".py" else ()
    except (OSError, SyntaxError, ValueError):
        return False
    loaded = {one.id for one in names if isinstance(one, ast.Name) and type(one.ctx) is ast.Load}
    return name in loaded or f"{BASE}.{name}" in text


def _places_of(file: Path, keys: Sequence[str]) -> list[_Place]:
    """Return the places of the keys of a path, up to the last that is known."""
    places: list[_Place] = []
    try:
        parts = _trace(file)
    except Exception:  # noqa: BLE001 - a message must not fail for want of its line
        return []
    for key in keys:
        place = parts.get(int(key) if key.isdecimal() else key)
        if place is None:
            break
        places.append(place)
        parts = place.parts
    return places


def _trace(file: Path) -> dict[Any, _Place]:
    """Return the places of all keys of ``file`` and of the files that it inherits."""
    text = write_values(file.read_text(encoding="utf-8"), file)
    if file.suffix == ".py":
        tree = ast.parse(text)
        return _Statements(file).places_in(tree)
    import yaml  # noqa: PLC0415 - importing mm_runner stays cheap

    own = _of_yaml(file, yaml.compose(text, yaml.SafeLoader), 1).parts  # JSON is YAML too
    named = yaml.safe_load(text)[BASE] if BASE in own else None
    return _merged(_inherited(file, named), own)


def _inherited(file: Path, named: Any) -> dict[Any, _Place]:
    parts: dict[Any, _Place] = {}
    for one in [named] if isinstance(named, str) else named or ():
        parts.update(_trace((file.resolve().parent / one).resolve()))
    return parts


def _of_yaml(file: Path, node: Any, line: int) -> _Place:
    parts: dict[Any, _Place] = {}
    if node is not None and node.id == "sequence":
        parts = {
            index: _of_yaml(file, one, one.start_mark.line + 1)
            for index, one in enumerate(node.value)
        }
    elif node is not None and node.id == "mapping":
        parts = {
            key.value: _of_yaml(file, value, key.start_mark.line + 1) for key, value in node.value
        }
    return _Place(file, line, parts)


def _merged(base: dict[Any, _Place], own: dict[Any, _Place]) -> dict[Any, _Place]:
    """Return ``own`` over ``base`` as files are merged; the result shares nothing."""
    merged = {} if DELETE in own else {key: _copied(one) for key, one in base.items()}
    for key, place in own.items():
        inner = merged[key].parts if key in merged and 0 not in place.parts else {}
        merged[key] = place._replace(parts=_merged(inner if place.parts else {}, place.parts))
    return merged


def _copied(place: _Place) -> _Place:
    return place._replace(parts={key: _copied(one) for key, one in place.parts.items()})


class _Statements(ast.NodeVisitor):
    """Reads the statements of one file that set keys by literals and names."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._names: dict[Any, _Place] = {}

    def places_in(self, tree: ast.Module) -> dict[Any, _Place]:
        """Return the places of the keys that a file with these statements has."""
        base = _Place(self._file, 1, _inherited(self._file, take_base(self._file, tree)[1]))
        self._names[BASE] = base
        self.visit(tree)
        own = {name: one for name, one in self._names.items() if not name.startswith("_")}
        return _merged(base.parts, own)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        """Skip statements that are not the file's own."""

    visit_ClassDef = visit_FunctionDef  # noqa: N815 - the name that NodeVisitor looks for

    def visit_With(self, node: ast.With) -> None:
        for statement in node.body if is_block(node) else ():
            if isinstance(statement, ast.ImportFrom):
                content = _inherited(self._file, path_of(statement))
                for name in statement.names:
                    if name.name == "*":
                        self._names.update(content)
                    elif name.name in content:
                        self._names[name.asname or name.name] = content[name.name]

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, self._value(node.value), node.lineno)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self._value(node.value), node.lineno)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        found = self._find(node.target)
        is_dict = isinstance(node.op, ast.BitOr) and found is not None
        parts = _merged(found.parts if is_dict and found else {}, self._value(node.value).parts)
        value = _Place(self._file, node.lineno, parts if is_dict else {})
        self._assign(node.target, value, node.lineno)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                self._set(target.value, None, node.lineno)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Follow a method that changes a dict or a list."""
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return
        changed = self._value(call) if call.func.attr in ("update", "merge") else None
        self._set(call.func.value, changed, node.lineno)

    def _set(self, holder: ast.expr, changed: _Place | None, line: int) -> None:
        """Give a dict or a list that a statement changes the line of it, and merge what is known.

        In a list, indices have shifted.
        """
        place = self._find(holder)
        if place is not None:
            kept = {} if 0 in place.parts else place.parts
            parts = _merged(kept, changed.parts) if changed else kept
            self._assign(holder, _Place(self._file, line, parts), line)

    def _assign(self, target: ast.expr, value: _Place, line: int) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, one in enumerate(target.elts):
                part = value.parts.get(index) or _Place(self._file, line, {})
                self._assign(one, part, line)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            holder = self._find(target.value)
            key = _key_of(target, holder)
            if holder is not None and key is not None:
                holder.parts[key] = _Place(self._file, line, value.parts)

    def _find(self, node: ast.expr) -> _Place | None:
        """Return the place of the object that an expression names, if it is known."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            holder = self._find(node.value)
            return None if holder is None else holder.parts.get(_key_of(node, holder))
        return None

    def _value(self, node: ast.expr) -> _Place:
        """Return the place of an expression's value, with the parts of literals and of names."""
        pairs: list[tuple[Any, ast.expr]] = []
        if isinstance(node, ast.Dict):
            keys = [_constant(key) for key in node.keys]
            pairs = list(zip(keys, node.values, strict=True))
        elif isinstance(node, (ast.List, ast.Tuple)):
            pairs = list(enumerate(node.elts))
        elif isinstance(node, ast.Call):  # dict(...), or a call of update with the same arguments
            if isinstance(node.func, ast.Attribute) or getattr(node.func, "id", "") == "dict":
                pairs = [(None, one) for one in node.args]
                pairs += [(one.arg, one.value) for one in node.keywords]
        else:
            found = self._find(node)
            return _Place(self._file, node.lineno, {} if found is None else found.parts)
        parts: dict[Any, _Place] = {}
        for key, value in pairs:
            place = self._value(value)
            if key is None:  # **name, or dict(name)
                parts.update(place.parts)
            else:
                parts[key] = place
        return _Place(self._file, node.lineno, parts)


def _key_of(node: ast.Attribute | ast.Subscript, holder: _Place | None) -> Any:
    key = node.attr if isinstance(node, ast.Attribute) else _constant(node.slice)
    return key + len(holder.parts) if holder and isinstance(key, int) and key < 0 else key


def _constant(node: ast.expr | None) -> Any:
    try:
        value = ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None
    return value if isinstance(value, (str, int)) else None
