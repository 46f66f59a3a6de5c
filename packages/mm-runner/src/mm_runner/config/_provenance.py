"""Where the keys of a configuration were written last; of the files, only ``_base_`` is run."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from ._environment import Variables, fill_whole_values
from ._merging import DELETE
from ._python import BASE, take_base
from ._read_base import is_block, path_of
from ._substitution import quote_braces
from ._written import Entry, Value, merged, shallow

__all__ = ["trace"]

# Of all loops of a file together: a message must not wait for its line.
_MOST_ROUNDS = 1000
_UNKNOWN_KEY = None


def trace(file: Path) -> Value:
    """Return the keys of ``file`` and of what it inherits, each with its place.

    Raises:
        Exception: Whatever reading the file gives, if that has changed since it was loaded.
    """
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        tree = ast.parse(Variables(str(file)).hide(text))
        return _Statements(file, _bases(file, take_base(file, tree)[1])).result_of(tree)
    import yaml  # noqa: PLC0415 - importing mm_runner stays cheap

    node = yaml.compose(quote_braces(fill_whole_values(text, str(file))), yaml.SafeLoader)
    own = _of_yaml(file, node)  # JSON is YAML too
    named = own.entry(BASE)
    bases: Any = None
    if named is not None:
        listed = named.value.parts
        bases = [one.value.constant for one in listed] if isinstance(listed, list) else None
        bases = bases or named.value.constant
    return merged(_bases(file, bases), own)


def _bases(file: Path, named: Any) -> Value:
    parts: dict[str, Entry] = {}
    for one in [named] if isinstance(named, str) else named or ():
        parts.update(_inherited(file, one))
    return Value(parts)


def _inherited(file: Path, path: str) -> dict[str, Entry]:
    parts = trace((file.resolve().parent / path).resolve()).parts
    return parts if isinstance(parts, dict) else {}


def _of_yaml(file: Path, node: Any) -> Value:
    if node is None or node.id == "scalar":
        return Value(constant=getattr(node, "value", None))
    if node.id == "sequence":
        return Value(
            [Entry(file, one.start_mark.line + 1, _of_yaml(file, one)) for one in node.value]
        )
    return Value(
        {
            str(name.value): Entry(file, name.start_mark.line + 1, _of_yaml(file, value))
            for name, value in node.value
        }
    )


def _keywords(node: ast.Call) -> list[tuple[str | None, ast.expr]]:
    return [(one.arg, one.value) for one in node.keywords]


class _Statements(ast.NodeVisitor):
    """Follows the statements of one file; an expression that is visited gives a :class:`Value`."""

    def __init__(self, file: Path, base: Value) -> None:
        self._file = file
        self._base = base
        self._names: dict[str, Entry] = {BASE: Entry(file, 1, base)}
        self._branch: int | None = None
        self._rounds = _MOST_ROUNDS

    def result_of(self, tree: ast.Module) -> Value:
        """Return what a file with these statements gives."""
        self._follow(tree.body)
        own = {name: entry for name, entry in self._names.items() if not name.startswith("_")}
        return merged(self._base, Value(own))

    def _follow(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self.visit(statement)

    def _entry(self, node: Any, value: Value) -> Entry:
        return Entry(self._file, self._branch or node.lineno, value)

    def _change(self, value: Value, node: Any) -> None:
        """Note that ``node`` changes ``value`` in a way that is not known."""
        value.parts = None
        value.changed_at = (self._file, self._branch or node.lineno)
        if value.part_of is not None:
            self._change(value.part_of, node)

    # Statements

    @override
    def generic_visit(self, node: ast.AST) -> Value:
        for field in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.While, ast.With, ast.Try)):
                self._follow(getattr(node, field, ()))
        return Value()

    def visit_Expr(self, node: ast.Expr) -> None:
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self._assign(target, node, node.value, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, node, node.value, self.visit(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        there, value = self.visit(node.target), self.visit(node.value)
        if isinstance(node.op, ast.Add) and isinstance(there.parts, list):
            there.parts.extend(value.parts if isinstance(value.parts, list) else ())
        elif isinstance(node.op, ast.BitOr) and isinstance(there.parts, dict):
            self._update(there, value, node)
        else:
            there = Value()
        self._assign(node.target, node, node, there)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._names.pop(target.id, None)
            elif isinstance(target, (ast.Attribute, ast.Subscript)):
                self._take(self.visit(target.value), self._key(target), node)

    def visit_If(self, node: ast.If) -> None:
        # Which of two is run is not known: what either of them changes is told by the line of both.
        outer = self._branch
        self._branch = outer or (node.lineno if node.orelse else None)
        self._follow([*node.body, *node.orelse])
        self._branch = outer

    def visit_For(self, node: ast.For) -> None:
        parts = self.visit(node.iter).parts
        if not isinstance(parts, list):
            parts = [self._entry(node, self._some_part(node.iter))]
        for entry in parts[: max(self._rounds, 0)]:
            self._rounds -= 1
            self._assign(node.target, node, node.iter, entry.value)
            self._follow(node.body)
        self._follow(node.orelse)

    def visit_With(self, node: ast.With) -> None:
        if not is_block(node):
            self._follow(node.body)
            return
        for statement in node.body:
            if not isinstance(statement, ast.ImportFrom):
                continue
            content = _inherited(self._file, path_of(statement))
            for name in statement.names:
                if name.name == "*":
                    self._names.update(content)
                elif name.name in content:
                    self._names[name.asname or name.name] = content[name.name]

    def _assign(self, target: ast.expr, statement: ast.stmt, source: Any, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = self._entry(source, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value.parts if isinstance(value.parts, list) else []
            known = len(parts) == len(target.elts)
            for index, one in enumerate(target.elts):
                self._assign(one, statement, source, parts[index].value if known else value)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            holder, key = self.visit(target.value), self._key(target)
            entry = self._entry(statement, value)
            if holder.part_of is not None:
                self._change(holder, statement)
            elif isinstance(key, str) and not isinstance(holder.parts, list):
                holder.parts = {**(holder.parts or {}), key: entry}
            elif isinstance(holder.parts, dict) and key is not _UNKNOWN_KEY:
                holder.parts[str(key)] = entry
            elif isinstance(holder.parts, list) and holder.entry(key) is not None:
                holder.parts[int(key)] = entry
            else:
                self._change(holder, statement)

    def _key(self, node: ast.Attribute | ast.Subscript) -> Any:
        if isinstance(node, ast.Attribute):
            return node.attr
        try:
            key = ast.literal_eval(node.slice)
        except ValueError:
            key = self.visit(node.slice).constant
        return key if isinstance(key, (str, int)) else _UNKNOWN_KEY

    def _take(self, holder: Value, key: Any, node: Any) -> Value:
        entry = holder.entry(key)
        if isinstance(holder.parts, dict) and entry is not None:
            holder.parts.pop(str(key))
        elif isinstance(holder.parts, list) and entry is not None:
            holder.parts.pop(int(key))
        elif isinstance(holder.parts, list):
            self._change(holder, node)
        return entry.value if entry else Value()

    def _update(self, there: Value, other: Value, node: Any) -> None:
        if not isinstance(there.parts, dict) or not isinstance(other.parts, dict):
            self._change(there, node)
            return
        if other.changed_at is not None:
            self._change(there, node)
            there.parts = {}
        if other.replaces():
            there.parts.clear()
        for key, entry in other.parts.items():
            old = there.parts.get(key)
            value = entry.value
            both = old is not None and isinstance(old.value.parts, dict)
            if old is not None and both and isinstance(value.parts, dict) and old.value != value:
                self._update(old.value, value, node)
                value = old.value
            if key != DELETE:
                there.parts[key] = entry._replace(value=value)

    # Expressions

    def visit_Constant(self, node: ast.Constant) -> Value:
        return Value(constant=node.value)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        number = self.visit(node.operand).constant
        is_negative = isinstance(node.op, ast.USub) and isinstance(number, int)
        return Value(constant=-number if is_negative else None)

    def visit_Name(self, node: ast.Name) -> Value:
        return self._names[node.id].value if node.id in self._names else Value()

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        return self._part(node)

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        return self._part(node)

    def _part(self, node: ast.Attribute | ast.Subscript) -> Value:
        holder = self.visit(node.value)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            bounds = node.slice.lower, node.slice.upper, node.slice.step
            numbers = [None if one is None else self.visit(one).constant for one in bounds]
            if isinstance(holder.parts, list) and all(
                one is None or isinstance(number, int)
                for one, number in zip(bounds, numbers, strict=True)
            ):
                return Value(holder.parts[slice(*numbers)])
        entry = holder.entry(self._key(node))
        return self._unknown_part(holder) if entry is None else entry.value

    def _unknown_part(self, holder: Value) -> Value:
        part = Value()
        part.part_of = holder
        return part

    def _some_part(self, iterated: ast.expr) -> Value:
        """Return a part of what ``enumerate(x)``, ``x.values()`` or ``x`` goes through."""
        nodes = [iterated]
        if isinstance(iterated, ast.Call):
            nodes = [getattr(iterated.func, "value", iterated), *iterated.args]
        values = [self.visit(node) for node in nodes if not isinstance(node, ast.Call)]
        known = [value for value in values if value.parts is not None]
        return self._unknown_part(known[0]) if known else Value()

    def visit_Dict(self, node: ast.Dict) -> Value:
        return self._dict((), zip(node.keys, node.values, strict=True))

    def visit_List(self, node: ast.List | ast.Tuple) -> Value:
        if any(isinstance(one, ast.Starred) for one in node.elts):
            return Value()
        return Value([self._entry(one, self.visit(one)) for one in node.elts])

    visit_Tuple = visit_List  # noqa: N815 - the name that NodeVisitor looks for

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left.parts, list):
            return Value([*left.parts, *(right.parts if isinstance(right.parts, list) else ())])
        return merged(left, right) if isinstance(node.op, ast.BitOr) else Value()

    def visit_Call(self, node: ast.Call) -> Value:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ("deepcopy", "copy", "list", "tuple") and node.args:
            copied: Value = self.visit(node.args[0])
            if name == "deepcopy":
                return copied.copy()
            is_dict = isinstance(copied.parts, dict) and name != "copy"
            return Value() if is_dict else shallow(copied)
        if isinstance(node.func, ast.Attribute):
            return self._method(self.visit(node.func.value), name, node)
        return self._dict(node.args, _keywords(node))

    def _method(self, holder: Value, name: str, node: ast.Call) -> Value:
        values = [self.visit(one) for one in node.args]
        key = values[0].constant if values else _UNKNOWN_KEY
        if name in ("update", "merge"):
            self._update(holder, self._dict(node.args, _keywords(node)), node)
        elif name == "copy":
            return shallow(holder)
        elif name in ("pop", "__delitem__"):
            return self._take(holder, key if node.args else -1, node)
        elif name in ("get", "setdefault"):
            entry = holder.entry(key)
            if entry is None and name == "setdefault" and isinstance(holder.parts, dict):
                entry = holder.parts[str(key)] = self._entry(node, values[-1])
            return Value() if entry is None else entry.value
        elif name == "clear" and holder.parts is not None:
            holder.parts.clear()
        elif name in ("append", "extend", "insert", "remove", "reverse", "sort"):
            self._change_list(holder, name, node, values)
        return Value()

    def _change_list(self, holder: Value, name: str, node: ast.Call, values: list[Value]) -> None:
        items = holder.parts
        if isinstance(items, list) and name == "append" and values:
            items.append(self._entry(node.args[-1], values[-1]))
        elif isinstance(items, list) and name == "reverse":
            items.reverse()
        elif isinstance(items, list) and name == "extend" and values:
            items.extend(values[0].parts if isinstance(values[0].parts, list) else ())
        elif isinstance(items, list) and name == "insert" and len(values) > 1:
            index = values[0].constant
            if isinstance(index, int):
                items.insert(index, self._entry(node.args[-1], values[-1]))
            else:
                self._change(holder, node)
        else:
            self._change(holder, node)

    def _dict(self, args: Any, pairs: Any) -> Value:
        """Return what ``dict(*args, **pairs)`` gives; a name that is none stands for ``**``."""
        parts: dict[str, Entry] = {}
        result = Value(parts)
        for name, node in [*((None, one) for one in args), *pairs]:
            value = self.visit(node)
            key = self.visit(name).constant if isinstance(name, ast.expr) else name
            if key is not None:
                parts[str(key)] = self._entry(node, value)
            elif name is None and isinstance(value.parts, dict):
                parts.update(value.parts)
                result.changed_at = result.changed_at or value.changed_at
            else:
                result.changed_at = (self._file, self._branch or node.lineno)
        return result
