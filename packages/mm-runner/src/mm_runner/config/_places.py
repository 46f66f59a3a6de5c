"""Find the file and line that set a config key, without running the files.

YAML and JSON are read from the marks of their nodes, Python from the syntax tree of its literals.
What a call, a loop or a comprehension computes has the line of the statement.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._config_dict import DELETE
from ._python import BASE, is_block, path_of, take_base
from ._substitution import write_values

__all__ = ["describe_location", "reads_name", "written_in"]

_PATH = re.compile(r"(?:cfg\.)?([A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*)(?=[:\s]|$)")


class _Found(NamedTuple):
    """How many keys of a path are set, where, and whether inherited files do not count."""

    depth: int
    file: Path
    line: int
    is_final: bool = False


def describe_location(files: Sequence[Path], message: str) -> str:
    """Return ``"file:line"`` of the key whose path ``message`` begins with."""
    match = _PATH.match(message)
    if match is None or not files:
        return ""
    found = _find(files[0], match[1])
    shown = found.file
    if shown.is_relative_to(Path.cwd()):
        shown = shown.relative_to(Path.cwd())
    return f"{shown}:{found.line}" if found.depth else str(shown)


def written_in(files: Sequence[Path], path: str) -> Path | None:
    """Return the file that sets the key ``path`` last; ``None`` where that is not known."""
    found = _find(files[0], path) if files else None
    return found.file if found and found.depth == len(path.split(".")) else None


def reads_name(file: Path, name: str) -> bool:
    """Return whether ``file`` reads a top-level key: a variable of Python, or of its ``_base_``."""
    try:
        text = write_values(file.read_text(encoding="utf-8"), file)
        names = ast.walk(ast.parse(text)) if file.suffix == ".py" else ()
    except (OSError, SyntaxError, ValueError):
        return False
    loaded = {one.id for one in names if isinstance(one, ast.Name) and type(one.ctx) is ast.Load}
    return name in loaded or f"{BASE}.{name}" in text


def _find(file: Path, path: str) -> _Found:
    keys = [int(key) if key.isdecimal() else key for key in re.findall(r"[\w-]+", path)]
    try:
        return _in_file(file, keys)
    except Exception:  # noqa: BLE001 - a message must not fail for want of its line
        return _Found(0, file, 0)


def _in_file(file: Path, keys: list[Any]) -> _Found:
    text = write_values(file.read_text(encoding="utf-8"), file)
    if file.suffix == ".py":
        return _Statements(file, text).find(keys)
    import yaml  # noqa: PLC0415 - importing mm_runner stays cheap

    own = _in_node(file, yaml.compose(text, yaml.SafeLoader), keys)  # JSON is YAML too
    inherited = (yaml.safe_load(text) or {}).get(BASE)
    return own if own.is_final else max(own, _in_files(file, inherited, keys), key=_depth)


def _in_files(file: Path, named: Any, keys: list[Any]) -> _Found:
    """Find keys in the files that ``file`` inherits."""
    listed = [named] if isinstance(named, str) else named or ()
    found = [_in_file((file.resolve().parent / one).resolve(), keys) for one in listed]
    return max(found, key=_depth, default=_Found(0, file, 0))


def _depth(found: _Found) -> int:
    return found.depth


def _in_node(file: Path, node: Any, keys: list[Any]) -> _Found:
    """Find keys in a node of YAML."""
    found = _Found(0, file, 0)
    for depth, key in enumerate(keys, 1):
        pairs: dict[Any, Any] = {}
        if getattr(node, "id", "") == "sequence":
            pairs = {index: (one, one) for index, one in enumerate(node.value)}
        elif getattr(node, "id", "") == "mapping":
            pairs = {name.value: (name, value) for name, value in node.value}
        found = found._replace(is_final=found.is_final or DELETE in pairs)
        if key not in pairs:
            break
        place, node = pairs[key]
        found = found._replace(depth=depth, line=place.start_mark.line + 1)
    return found


class _Statements:
    """The statements of a Python file, and what they set by literals and names."""

    def __init__(self, file: Path, text: str) -> None:
        tree = ast.parse(text)
        self._file = file
        self._inherited = take_base(file, tree)[1]
        self._listed = list(_flat(tree.body))

    def find(self, keys: list[Any]) -> _Found:
        """Find keys of the file: what it sets itself, else what it changes of its ``_base_``."""
        own = self._before(len(self._listed), keys)
        if own.is_final or own.depth == len(keys):
            return own
        base = self._before(len(self._listed), [BASE, *keys])
        return max(own, base._replace(depth=base.depth - 1), key=_depth)

    def _before(self, end: int, keys: list[Any]) -> _Found:
        """Find keys in the first ``end`` statements: the last that sets most of them counts."""
        best = _Found(0, self._file, 0)
        for index in range(end - 1, -1, -1):
            statement = self._listed[index]
            for target, value, replaces in _effects(statement):
                rest = keys[len(target) :]
                if keys[: len(target)] != target:
                    continue
                if isinstance(statement, ast.ImportFrom):
                    found = _in_files(self._file, path_of(statement), [*value, *rest])
                elif value is None:
                    found = _Found(len(target), self._file, statement.lineno)
                else:
                    found = self._in_value(value, rest, index)
                    found = found._replace(depth=len(target) + found.depth)
                best = max(best, found, key=_depth)
                # In a list that was changed, indices have shifted.
                has_shifted = value is None and rest and isinstance(rest[0], int)
                if found.depth and (replaces or has_shifted):
                    return best
        if keys[0] != BASE:
            return best
        inherited = _in_files(self._file, self._inherited, keys[1:])
        return max(best, inherited._replace(depth=inherited.depth + 1), key=_depth)

    def _in_value(self, node: ast.expr, keys: list[Any], index: int) -> _Found:
        """Find keys in the value of an expression in statement ``index``."""
        best = _Found(0, self._file, node.lineno)
        pairs: list[tuple[Any, ast.expr]] = []
        if isinstance(node, ast.Dict):
            names = [_constant(key) for key in node.keys]
            pairs = list(zip(names, node.values, strict=True))
        elif isinstance(node, (ast.List, ast.Tuple)):
            pairs = list(enumerate(node.elts))
        elif isinstance(node, ast.Call):  # dict(...), or a method that takes the same
            if isinstance(node.func, ast.Attribute) or getattr(node.func, "id", "") == "dict":
                pairs = [(None, one) for one in node.args]
                pairs += [(one.arg, one.value) for one in node.keywords]
        elif keys:
            path, is_exact = _path(node)
            named = self._before(index, [*path, *keys]) if is_exact else best
            return max(best, named._replace(depth=named.depth - len(path)), key=_depth)
        for key, value in pairs if keys else ():
            if key in (None, keys[0]):  # None: **name, or dict(name)
                found = self._in_value(value, keys if key is None else keys[1:], index)
                found = found if key is None else found._replace(depth=found.depth + 1)
                best = max(found, best, key=_depth)
        return best._replace(is_final=best.is_final or DELETE in dict(pairs))


def _flat(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements in order, with those of branches and loops, and imports of read_base()."""
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.ImportFrom)):
            continue
        if is_block(statement):
            yield from statement.body  # type: ignore[attr-defined]
            continue
        yield statement
        for name in ("body", "handlers", "orelse", "finalbody"):
            yield from _flat(getattr(statement, name, ()))


def _effects(statement: ast.stmt) -> Iterator[tuple[list[Any], Any, bool]]:
    """Yield path, value (``None``: not known) and whether it replaces what was there."""
    if isinstance(statement, ast.ImportFrom):  # the value is the path in the imported file
        for name in statement.names:
            is_all = name.name == "*"
            yield [] if is_all else [name.asname or name.name], [] if is_all else [name.name], True
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        for target in (
            statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        ):
            if isinstance(target, ast.Tuple):
                yield from ((_path(one)[0], None, True) for one in target.elts)
                continue
            path, is_exact = _path(target)
            yield path, statement.value if is_exact else None, is_exact
    elif isinstance(statement, ast.AugAssign):
        yield _path(statement.target)[0], None, False
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        method = statement.value.func
        if isinstance(method, ast.Attribute):
            is_merged = method.attr in ("update", "merge")
            yield _path(method.value)[0], statement.value if is_merged else None, False


def _path(node: ast.expr) -> tuple[list[Any], bool]:
    """Return the keys that an expression such as ``a.b[0]`` names, as far as they are known."""
    if isinstance(node, ast.Name):
        return [node.id], True
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return [None], False
    key = node.attr if isinstance(node, ast.Attribute) else _constant(node.slice)
    path, is_exact = _path(node.value)
    is_known = is_exact and key is not None
    return ([*path, key] if is_known else path), is_known


def _constant(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None
