"""Parse options of the command line, ``key.path=value``."""

from __future__ import annotations

import ast
from argparse import Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import override

from mm_runner.errors import ConfigError

__all__ = ["DictAction", "parse_options"]

_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
# Of Python as text, of YAML with a point.
_WORDS |= {f"{sign}{dot}inf": float(f"{sign}inf") for sign in ("", "+", "-") for dot in ("", ".")}
_WORDS |= {word: float("nan") for word in ("nan", ".nan")}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class DictAction(Action):
    """argparse's action for ``--cfg-options a.b=c d.0=[1,2]``: gives a dict by path.

    Example:
        >>> parser = ArgumentParser()
        >>> _ = parser.add_argument("--cfg-options", nargs="+", action=DictAction)
        >>> parser.parse_args(["--cfg-options", "a.b=1e-3", "c=[x,2]"]).cfg_options
        {'a.b': 0.001, 'c': ['x', 2]}
    """

    @override
    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = [values] if isinstance(values, str) else values
        try:
            parsed = parse_options(given)
        except ConfigError as error:
            raise ArgumentError(self, str(error)) from error
        earlier = getattr(namespace, self.dest, None) or {}
        setattr(namespace, self.dest, {**earlier, **parsed})


def parse_options(options: Iterable[str]) -> dict[str, Any]:
    """Return values by path.

    Args:
        options: Each ``path=value``. A value is read as Python or YAML would read it; words that
            are neither stay text, also within brackets. ``a,b`` is the list of both.

    Raises:
        ConfigError: If one has no ``=`` or no path, or brackets that do not match.

    Example:
        >>> parse_options(["lr=1e-3", "hooks=[]", "name=run,2", "size=(1,2)", "on=true"])
        {'lr': 0.001, 'hooks': [], 'name': ['run', 2], 'size': (1, 2), 'on': True}
    """
    parsed = {}
    for option in options:
        path, equals, text = option.partition("=")
        if not equals or not path.strip(".") or ".." in path:
            raise ConfigError(
                f"{option!r} was given; write path=value, such as optim_wrapper.optimizer.lr=0.1."
            )
        path, text = path.strip(), text.strip()
        # A misspelled INFO is no infinity; and "none" is a launcher.
        is_level = path == "log_level" and text.isalpha()
        is_word = is_level or (path, text) == ("launcher", "none")
        parsed[path] = text if is_word else _value(text, option)
    return parsed


def _value(text: str, option: str) -> Any:
    try:
        literal = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass
    else:
        is_bare = isinstance(literal, tuple) and not text.startswith("(")
        return list(literal) if is_bare else literal
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text[:1] in ("(", "[") and text.endswith(_CLOSING[text[0]]):
        items = [_value(part, option) for part in _split(text[1:-1], option)]
        return tuple(items) if text[0] == "(" else items
    parts = _split(text, option)
    return text if len(parts) < 2 else [_value(part, option) for part in parts]


def _split(text: str, option: str) -> Sequence[str]:
    """Split at the commas that stand in no bracket and no quotes; an empty text has no parts."""
    parts, start, opened, quote = [], 0, [], ""
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _CLOSING:
            opened.append(_CLOSING[char])
        elif char in _CLOSING.values():
            if not opened or opened.pop() != char:
                raise ConfigError(f"{option!r} was given; its brackets do not match.")
        elif char == "," and not opened:
            parts.append(text[start:position].strip())
            start = position + 1
    if opened:
        raise ConfigError(f"{option!r} was given; its brackets do not match.")
    last = text[start:].strip()
    return [*parts, last] if last or not parts else parts
