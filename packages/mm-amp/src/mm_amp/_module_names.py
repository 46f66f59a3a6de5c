"""Find modules by glob patterns on their names, whatever wraps the model."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from ._errors import ConfigError, ConfigTypeError
from ._plain_names import walk

_NUM_NAMES_SHOWN = 12
_NUM_NEAR_SHOWN = 3


def parse_patterns(argument: str, patterns: str | Iterable[str]) -> tuple[str, ...]:
    """Return the patterns as a tuple; one may come without a list around it.

    Raises:
        ConfigTypeError: If one is no string.
        ConfigError: If one is empty.
    """
    is_list = isinstance(patterns, Iterable) and not isinstance(patterns, (str, bytes))
    listed: tuple[Any, ...] = tuple(patterns) if is_list else (patterns,)
    for pattern in listed:
        if not isinstance(pattern, str):
            raise ConfigTypeError(
                f"{argument} holds {pattern!r}; it takes glob patterns on module names, "
                "such as ['head', '*.norm']."
            )
        if not pattern:
            raise ConfigError(f"{argument} holds an empty pattern; name a module, such as 'head'.")
    return listed


def find_modules(argument: str, model: nn.Module, patterns: Iterable[str]) -> dict[nn.Module, str]:
    """Return the modules of ``model`` that any of ``patterns`` matches, with their names.

    A ``*`` also matches dots. Names are those of the model itself: what DDP, ``torch.compile`` and
    the like put in front is left out, though a pattern may spell it.

    Raises:
        ConfigError: If a pattern matches nothing.
    """
    listed = list(walk(model))
    found: dict[nn.Module, str] = {}
    for pattern in patterns:
        matching = [
            (module, name)
            for name, full_name, module in listed
            if name and (fnmatchcase(name, pattern) or fnmatchcase(full_name, pattern))
        ]
        if not matching:
            raise _nothing_matches(argument, pattern, listed)
        for module, name in matching:
            found.setdefault(module, name)
    return found


def _nothing_matches(
    argument: str, pattern: str, found: list[tuple[str, str, nn.Module]]
) -> ConfigError:
    own_type = [type(module).__name__ for name, _, module in found if not name][-1]
    by_name = {name: type(module).__name__ for name, _, module in found if name}
    asked = f"{argument} holds {pattern!r}, which matches no module of {own_type}"
    if not by_name:
        return ConfigError(
            f"{asked}: there are none inside it, and an island is a part of a model. "
            "To compute all of it in float32, use OptimWrapper."
        )
    return ConfigError(f"{asked}{_hint(pattern, by_name)} {_list_modules(own_type, list(by_name))}")


def _hint(pattern: str, by_name: dict[str, str]) -> str:
    of_class = [name for name, own_type in by_name.items() if own_type == pattern]
    if of_class:
        return f"; that is a class, and modules of it are {_shorten(of_class)}."
    for wider in (f"*.{pattern}", f"*{pattern}*"):
        matching = [name for name in by_name if fnmatchcase(name, wider)]
        if matching:
            return f"; {wider!r} would match {_shorten(matching)}."
    near = _near_names(pattern, list(by_name))
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else "."


def _near_names(pattern: str, names: list[str]) -> list[str]:
    from difflib import get_close_matches  # noqa: PLC0415 - only for messages

    parts = pattern.split(".")
    tails = [".".join(parts[start:]) for start in range(1, len(parts))]  # one prefix too many
    near = [tail for tail in tails if tail in names]
    near += get_close_matches(pattern, names, n=_NUM_NEAR_SHOWN)
    return list(dict.fromkeys(near))[:_NUM_NEAR_SHOWN]


def _list_modules(own_type: str, names: list[str]) -> str:
    if len(names) <= _NUM_NAMES_SHOWN:
        return f"{own_type} has {_shorten(names)}."
    top = [name for name in names if "." not in name]
    return f"At the top of the {len(names)} modules in {own_type} are {_shorten(top)}."


def _shorten(names: list[str]) -> str:
    """List names, many of them in part: ``'a, b and 3 more'``."""
    num_more = len(names) - _NUM_NAMES_SHOWN
    shown, last = (names, "") if num_more <= 0 else (names[:_NUM_NAMES_SHOWN], f"{num_more} more")
    if not last:
        shown, last = names[:-1], names[-1]
    return f"{', '.join(shown)} and {last}" if shown else last
