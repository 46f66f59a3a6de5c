"""PyYAML's safe loader with exponents, tuples, and an error for duplicate keys."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from mm_runner.errors import ConfigError


def parse_yaml(file: Path, text: str) -> Any:
    """Parse the text of a file; nothing of it is run."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - derived from the safe one
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = str(file) if mark is None else f"{file}:{mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{place}: this is not YAML: {problem}") from error


class _Loader(yaml.SafeLoader):
    """Reads ``1e-3`` as a number, as YAML 1.2 has it, and refuses duplicate keys."""

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key) if key is not None else None
        return super().construct_mapping(node, deep)


def _construct_tuple(loader: _Loader, node: yaml.SequenceNode) -> tuple[Any, ...]:
    return tuple(yaml.SafeLoader.construct_sequence(loader, node, deep=True))


_Loader.add_constructor("tag:yaml.org,2002:python/tuple", _construct_tuple)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)
