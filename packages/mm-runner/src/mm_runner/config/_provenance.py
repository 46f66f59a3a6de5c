"""Map config keys to the file and line that set them, without running the files.

YAML and JSON are read from the marks of their nodes, Python from the syntax tree of its literals.
What a call, a loop or a comprehension computes has the line of the statement.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from ._config_dict import DELETE
from ._python import BASE, is_block, path_of, take_base
from ._substitution import write_values

__all__ = ["Place", "trace"]


class Place:
    """File and line of a value, and the places of the parts that are written out.

    Args:
        file: The file.
        line: From 1.
        parts: Of a dict or a list. Names of one object share them.
    """

    def __init__(
        self, file: Path, line: int, parts: dict[str, Place] | list[Place] | None = None
    ) -> None:
        self.file = file
        self.line = line
        self.parts = parts

    def part(self, key: Any) -> Place | None:
        """Return the place of a key or an index, if it is known."""
        if isinstance(self.parts, dict):
            return self.parts.get(str(key))
        if isinstance(self.parts, list) and str(key).lstrip("-").isdecimal():
            index = int(key)
            return self.parts[index] if -len(self.parts) <= index < len(self.parts) else None
        return None


def trace(file: Path) -> Place:
    """Return the places of all keys of ``file`` and of the files that it inherits.

    Raises:
        Exception: Any, if a file has changed since it was loaded.
    """
    text = write_values(file.read_text(encoding="utf-8"), file)
    if file.suffix == ".py":
        tree = ast.parse(text)
        return _Statements(file, _bases(file, take_base(file, tree)[1])).result_of(tree)
    import yaml  # noqa: PLC0415 - importing mm_runner stays cheap

    node: Any = yaml.compose(text, yaml.SafeLoader)
    named = [value for key, value in node.value if key.value == BASE] if node else []
    bases = [one.value for one in named if one.id == "scalar"]
    bases += [one.value for value in named if value.id == "sequence" for one in value.value]
    return _merged(_bases(file, bases), _of_yaml(file, node))  # JSON is YAML too


def _bases(file: Path, named: Any) -> Place:
    parts: dict[str, Place] = {}
    for one in [named] if isinstance(named, str) else named or ():
        parts.update(_inherited(file, one))
    return Place(file, 1, parts)


def _inherited(file: Path, path: str) -> dict[str, Place]:
    parts = trace((file.resolve().parent / path).resolve()).parts
    return parts if isinstance(parts, dict) else {}


def _of_yaml(file: Path, node: Any, line: int = 1) -> Place:
    if node is None or node.id == "scalar":
        return Place(file, line)
    if node.id == "sequence":
        return Place(
            file, line, [_of_yaml(file, one, one.start_mark.line + 1) for one in node.value]
        )
    pairs = {key.value: (value, key.start_mark.line + 1) for key, value in node.value}
    return Place(file, line, {key: _of_yaml(file, *pair) for key, pair in pairs.items()})


def _merged(base: Place | None, own: Place) -> Place:
    """Return ``own`` over ``base`` as files are merged; what comes of it shares nothing."""
    if isinstance(own.parts, list):
        return Place(own.file, own.line, [_merged(None, one) for one in own.parts])
    if own.parts is None:
        return Place(own.file, own.line)
    kept = base.parts if base is not None and DELETE not in own.parts else None
    parts = {key: _merged(None, one) for key, one in kept.items()} if isinstance(kept, dict) else {}
    changed = {key: _merged(parts.get(key), one) for key, one in own.parts.items()}
    return Place(own.file, own.line, {**parts, **changed})


class _Statements(ast.NodeVisitor):
    """Reads the statements of one file that set keys by literals and names."""

    def __init__(self, file: Path, base: Place) -> None:
        self._file = file
        self._names = {BASE: base}

    def result_of(self, tree: ast.Module) -> Place:
        """Return the places of the keys that a file with these statements has."""
        self.visit(tree)
        own = {name: place for name, place in self._names.items() if not name.startswith("_")}
        return _merged(self._names.get(BASE), Place(self._file, 1, own))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        """Skip statements that are not the file's own."""

    visit_ClassDef = visit_FunctionDef  # noqa: N815 - the name that NodeVisitor looks for

    def visit_With(self, node: ast.With) -> None:
        if not is_block(node):
            self.generic_visit(node)
            return
        for statement in node.body:
            if isinstance(statement, ast.ImportFrom):
                content = _inherited(self._file, path_of(statement))
                for name in statement.names:
                    if name.name == "*":
                        self._names.update(content)
                    elif name.name in content:
                        self._names[name.asname or name.name] = content[name.name]

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self._value(node.value)
        for target in node.targets:
            self._assign(target, value, node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self._value(node.value), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        changed = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
        self._assign(node.target, self._value(changed), node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                self._forget(self._find(target.value), target)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Follow a method that changes a dict or a list."""
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return
        holder, name = self._find(call.func.value), call.func.attr
        parts = None if holder is None else holder.parts
        if name in ("update", "merge") and holder is not None and isinstance(parts, dict):
            changed = _merged(holder, self._dict(call)).parts
            parts.clear()
            parts.update(changed)  # type: ignore[arg-type]
            if any(self._value(one).parts is None for one in call.args):
                self._forget(holder, call)  # its keys are computed
        elif name == "append" and isinstance(parts, list) and call.args:
            parts.append(self._value(call.args[-1]))
        else:
            self._forget(holder, call)

    def _assign(self, target: ast.expr, value: Place, statement: ast.stmt) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, one in enumerate(target.elts):
                self._assign(one, value.part(index) or Place(self._file, value.line), statement)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            holder, key = self._find(target.value), _key_of(target)
            placed = Place(self._file, statement.lineno, value.parts)
            if holder is not None and isinstance(key, str) and not isinstance(holder.parts, list):
                holder.parts = {} if holder.parts is None else holder.parts
                holder.parts[key] = placed
            elif holder is not None and isinstance(holder.parts, list) and holder.part(key):
                holder.parts[int(key)] = placed
            else:
                self._forget(holder, statement)

    def _forget(self, holder: Place | None, node: ast.stmt | ast.expr) -> None:
        """Give what was changed the line of the change; in a list, indices have shifted."""
        if holder is None:
            return
        if isinstance(holder.parts, list):
            holder.parts.clear()
        holder.file, holder.line = self._file, node.lineno

    def _find(self, node: ast.expr) -> Place | None:
        """Return the place of the object that an expression names, if it is known."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            holder = self._find(node.value)
            return holder.part(_key_of(node)) if holder is not None else None
        return None

    def _value(self, node: ast.expr) -> Place:
        """Return the place of an expression's value, with the parts of literals and of names."""
        if isinstance(node, ast.Dict) or (
            isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict"
        ):
            return self._dict(node)
        found = self._find(node)
        parts = found.parts if found is not None else None
        if isinstance(node, (ast.List, ast.Tuple)):
            items = [one for one in node.elts if not isinstance(one, ast.Starred)]
            parts = [self._value(one) for one in items] if len(items) == len(node.elts) else None
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("deepcopy") and node.args:
            parts = _merged(None, self._value(node.args[0])).parts
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._value(node.left).parts, self._value(node.right).parts
            parts = left + right if isinstance(left, list) and isinstance(right, list) else None
        return Place(self._file, node.lineno, parts)

    def _dict(self, node: ast.Dict | ast.Call) -> Place:
        """Return the places in ``{...}``, or in ``dict(...)`` and calls like it."""
        if isinstance(node, ast.Dict):
            pairs = [
                (_constant(key), value) for key, value in zip(node.keys, node.values, strict=True)
            ]
        else:
            pairs = [
                *((None, one) for one in node.args),
                *((one.arg, one.value) for one in node.keywords),
            ]
        parts: dict[str, Place] = {}
        for key, value in pairs:
            place = self._value(value)
            if key is not None:
                parts[str(key)] = place
            elif isinstance(place.parts, dict):  # **name, or dict(name)
                parts.update(place.parts)
        return Place(self._file, node.lineno, parts)


def _key_of(node: ast.Attribute | ast.Subscript) -> Any:
    return node.attr if isinstance(node, ast.Attribute) else _constant(node.slice)


def _constant(node: ast.expr | None) -> Any:
    try:
        value = ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None
    return value if isinstance(value, (str, int)) else None
