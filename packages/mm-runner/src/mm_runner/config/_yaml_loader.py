"""PyYAML's safe loader with exponents, tuples, and an error for duplicate keys."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml
from typing_extensions import override

__all__ = ["ConfigLoader"]


class ConfigLoader(yaml.SafeLoader):
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


def _construct_tuple(loader: ConfigLoader, node: yaml.SequenceNode) -> tuple[Any, ...]:
    return tuple(yaml.SafeLoader.construct_sequence(loader, node, deep=True))


ConfigLoader.add_constructor("tag:yaml.org,2002:python/tuple", _construct_tuple)
ConfigLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)
