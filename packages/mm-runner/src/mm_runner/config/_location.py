"""Where in a file a key stands, for messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["describe_location"]

_BASE = "_base_"  # what a file of Python changes in place
_PATH = re.compile(r"(?:cfg\.)?([A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*)(?=[:\s]|$)")


def describe_location(files: Sequence[Path], message: str) -> str:
    """Return ``"file:line"`` of the key whose path ``message`` begins with.

    Args:
        files: Those that a configuration was read from; of two that know equally much of the path,
            the first counts.
        message: Begins as ``optim_wrapper.optimizer.lrr: ...``.

    Returns:
        The place of the key, or of the nearest one above it; the first file alone where no file has
        the first key; ``""`` without files or path.
    """
    match = _PATH.match(message)
    if match is None or not files:
        return ""
    keys = re.findall(r"[\w-]+", match[1])
    depth, place = 0, _shown(files[0])
    for file in files:
        lines = _lines(file, keys)
        if len(lines) > depth:
            depth, place = len(lines), f"{_shown(file)}:{lines[-1]}"
    return place


def _shown(file: Path) -> str:
    """Return the path from the current folder, if it leads there without going up."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def _lines(file: Path, keys: Sequence[str]) -> list[int]:
    """Return the line of each key on the way, as far as ``file`` has them."""
    try:
        text = file.read_text(encoding="utf-8")
        walk = _walk_python if file.suffix == ".py" else _walk_yaml
        return list(walk(text, keys))
    except Exception:  # noqa: BLE001 - a message must not fail for want of its line
        return []


def _walk_yaml(text: str, keys: Sequence[str]) -> Iterator[int]:
    import yaml  # noqa: PLC0415 - importing mm_runner stays cheap

    node = yaml.compose(text, yaml.SafeLoader)  # JSON is YAML too
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            pairs = [pair for pair in node.value if pair[0].value == key]
            if not pairs:
                return
            name, node = pairs[0]
            yield name.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and key.isdecimal():
            node = node.value[int(key)]
            yield node.start_mark.line + 1
        else:
            return


def _walk_python(text: str, keys: Sequence[str]) -> list[int]:
    tree = ast.parse(text)
    lines = list(_walk_values(tree, keys))
    for statement in tree.body:
        path = _path_in_base(statement)
        if path and path == list(keys[: len(path)]):
            within = _walk_values(statement.value, keys[len(path) :])  # type: ignore[attr-defined]
            found = [statement.lineno] * len(path) + list(within)
            lines = found if len(found) >= len(lines) else lines
    return lines


def _path_in_base(statement: ast.stmt) -> list[str]:
    """Return the keys in ``_base_.model["depth"] = ...``, none of any other statement."""
    if not isinstance(statement, (ast.Assign, ast.AugAssign)):
        return []
    target = statement.target if isinstance(statement, ast.AugAssign) else statement.targets[0]
    keys: list[str] = []
    while isinstance(target, (ast.Attribute, ast.Subscript)):
        if isinstance(target, ast.Attribute):
            keys.insert(0, target.attr)
        else:
            keys.insert(0, str(getattr(target.slice, "value", "")))
        target = target.value
    return keys if isinstance(target, ast.Name) and target.id == _BASE else []


def _walk_values(node: Any, keys: Sequence[str]) -> Iterator[int]:
    for key in keys:
        found = list(_children(node, key))
        if not found:
            return
        line, node = found[-1]
        yield line


def _children(node: Any, key: str) -> Iterator[tuple[int, Any]]:
    """Yield the line and value of each ``key`` directly in ``node``, as dicts are written."""
    for name, value in _items(node):
        if name == key:
            yield value.lineno, value


def _items(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.Module):
        for statement in node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                yield statement.targets[0].id, statement.value
    elif isinstance(node, ast.Call):
        yield from ((str(keyword.arg), keyword.value) for keyword in node.keywords)
    elif isinstance(node, ast.Dict):
        for name, value in zip(node.keys, node.values, strict=True):
            if isinstance(name, ast.Constant):
                yield str(name.value), value
    elif isinstance(node, (ast.List, ast.Tuple)):
        yield from ((str(index), value) for index, value in enumerate(node.elts))
