"""Find the file and line that set a config key, without running the files.

A file is a list of settings, of which the last one counts. In Python they are what its statements
set by literals and names; YAML and JSON are one setting. What a call, a loop or a comprehension
computes has the line of the statement.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._config_dict import DELETE
from ._installed import find_file
from ._python import BASE, is_block, path_of, take_base
from ._substitution import write_values

_PATH = re.compile(r"(?:cfg\.)?([A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*)(?=[:\s]|$)")

_Keys = tuple[Any, ...]


class _Place(NamedTuple):
    """A line, and how many of the last keys of a path are not set there."""

    num_left: int
    file: Path
    line: int


class _Setting(NamedTuple):
    """A value put at ``path``: a node of ``ast`` or PyYAML, or a file and a path within it."""

    path: _Keys
    value: Any
    line: int
    is_merged: bool = False  # over what is there


def describe_location(files: Sequence[Path], message: str) -> str:
    """Return ``"file:line"`` of the key whose path ``message`` begins with."""
    match = _PATH.match(message)
    if match is None or not files:
        return ""
    texts = re.findall(r"[\w-]+", match[1])
    keys = tuple(int(text) if text.isdecimal() else text for text in texts)
    try:
        place = _File(files[0]).find(keys)
    except Exception:  # noqa: BLE001 - a message must not fail for want of its line
        place = _Place(len(keys), files[0], 0)
    shown = place.file
    if shown.is_relative_to(Path.cwd()):
        shown = shown.relative_to(Path.cwd())
    return f"{shown}:{place.line}" if place.num_left < len(keys) else str(shown)


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


class _File:
    """The settings of a file; those that it inherits by ``_base_`` come first."""

    def __init__(self, file: Path) -> None:
        self._file = file
        text = write_values(file.read_text(encoding="utf-8"), file)
        if file.suffix == ".py":
            tree = ast.parse(text)
            named = take_base(file, tree)[1]
            own = list(self._of_statements(tree.body))
        else:
            import yaml  # noqa: PLC0415 - importing mm_runner stays cheap

            named = (yaml.safe_load(text) or {}).get(BASE)
            node = yaml.compose(text, yaml.SafeLoader)  # JSON is YAML too
            own = [_Setting((), node, 0, is_merged=True)]
        bases = [named] if isinstance(named, str) else named or ()
        self._settings = [self._inherited((BASE,), base, ()) for base in bases] + own

    def find(self, keys: _Keys, end: int | None = None) -> _Place:
        """Return where the settings before ``end`` set ``keys``, or the first few of them."""
        best = _Place(len(keys), self._file, 0)
        for index in reversed(range(len(self._settings) if end is None else end)):
            path, value, line, is_merged = self._settings[index]
            if len(path) <= len(keys) and all(map(_is_same, path, keys)):
                best = _nearer(best, self._find_in(value, line, keys[len(path) :], index))
                if best.num_left == 0 or not is_merged:
                    break
        if best.num_left and keys[0] != BASE:
            best = _nearer(best, self.find((BASE, *keys), end))
        return best

    def _find_in(self, value: Any, line: int, keys: _Keys, index: int) -> _Place:
        """Return where ``keys`` are set within a value of the setting ``index``."""
        here = _Place(len(keys), self._file, line)
        if isinstance(value, tuple):
            file, path = value
            return _nearer(_File(file).find((*path, *keys)), here)
        path = _path_of(value)
        if path is not None:
            return _nearer(self.find((*path, *keys), index), here)
        pairs = list(_pairs(value))
        # A list is not merged with an inherited one, and no dict that replaces it.
        is_whole = (keys and isinstance(keys[0], int)) or DELETE in [key for key, *_ in pairs]
        best = here
        for key, item_line, item in reversed(pairs) if keys else ():
            if key is None:  # **name, or dict(name)
                best = _nearer(best, self._find_in(item, line, keys, index))
            elif key == keys[0]:
                best = _nearer(best, self._find_in(item, item_line, keys[1:], index))
        return best._replace(num_left=0) if is_whole else best

    def _inherited(self, target: _Keys, base: str, path: _Keys) -> _Setting:
        file = find_file(base, self._file.resolve().parent).resolve()
        return _Setting(target, (file, path), 0, is_merged=True)

    def _of_statements(self, statements: Sequence[ast.stmt]) -> Iterator[_Setting]:
        """Yield what statements set, in the order of the file."""
        for statement in statements:
            if is_block(statement):
                for one in statement.body:  # type: ignore[attr-defined]
                    for name in one.names:
                        is_all = name.name == "*"
                        target = () if is_all else (name.asname or name.name,)
                        yield self._inherited(target, path_of(one), () if is_all else (name.name,))
            elif not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                for expression, value, is_merged in _changes(statement):
                    path = _path_of(expression)
                    if path is not None:
                        yield _Setting(path, value, value.lineno, is_merged)
                for part in ("body", "handlers", "orelse", "finalbody"):
                    yield from self._of_statements(getattr(statement, part, ()))


def _nearer(best: _Place, other: _Place) -> _Place:
    return other if other.num_left < best.num_left else best


def _is_same(part: Any, key: Any) -> bool:
    """Return whether two keys are equal; an index from the end may be any."""
    return part == key or (isinstance(part, int) and part < 0 and isinstance(key, int))


def _changes(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | ast.stmt, bool]]:
    """Yield what a statement changes, the value for it, and whether that is merged.

    The value is the statement itself where it is computed.
    """
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Tuple):
                yield from ((one, statement, False) for one in target.elts)
            else:
                yield target, statement.value, False
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield statement.target, statement.value, False
    elif isinstance(statement, ast.AugAssign):
        yield statement.target, statement, True
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        method = statement.value.func
        if isinstance(method, ast.Attribute):
            is_update = method.attr in ("update", "merge")
            yield method.value, statement.value if is_update else statement, True


def _path_of(node: Any) -> _Keys | None:
    """Return ``("a", "b", 0)`` for the expression ``a.b[0]``, ``None`` for another one."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return None
    holder = _path_of(node.value)
    try:
        key = node.attr if isinstance(node, ast.Attribute) else ast.literal_eval(node.slice)
    except ValueError:
        return None
    return None if holder is None else (*holder, key)


def _pairs(node: Any) -> Iterator[tuple[Any, int, Any]]:
    """Yield key, line and node of each item; the key of a dict that is put in is ``None``."""
    kind = getattr(node, "id", "")  # of PyYAML
    if kind == "mapping":
        for key, item in node.value:
            yield None if key.value == "<<" else key.value, key.start_mark.line + 1, item
    elif kind == "sequence":
        for index, item in enumerate(node.value):
            yield index, item.start_mark.line + 1, item
    elif isinstance(node, ast.Dict):
        for name, item in zip(node.keys, node.values, strict=True):
            yield getattr(name, "value", None), item.lineno, item
    elif isinstance(node, (ast.List, ast.Tuple)):
        yield from ((index, item.lineno, item) for index, item in enumerate(node.elts))
    elif isinstance(node, ast.Call) and (
        isinstance(node.func, ast.Attribute) or getattr(node.func, "id", "") == "dict"
    ):  # dict(...), or a method that takes the same
        yield from ((None, item.lineno, item) for item in node.args)
        yield from ((item.arg, item.value.lineno, item.value) for item in node.keywords)
