"""Parse options of the command line, ``key.path=value``."""

from __future__ import annotations

import ast
import re
from argparse import Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from mm_runner.errors import ConfigError

_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
# What stands in quotes, and a bare word among brackets, commas and the colons after keys.
_LETTER = r"(?:[^,()\[\]{}:\s]|:(?!\s))"
_QUOTED_OR_WORD = re.compile(rf"'[^']*'|\"[^\"]*\"|{_LETTER}(?:(?:{_LETTER}|\s)*{_LETTER})?")


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
        try:
            parsed = parse_options([values] if isinstance(values, str) else values)
        except ConfigError as error:
            raise ArgumentError(self, str(error)) from error
        earlier = getattr(namespace, self.dest, None) or {}
        setattr(namespace, self.dest, {**earlier, **parsed})


def parse_options(options: Iterable[str]) -> dict[str, Any]:
    """Return values by path.

    Args:
        options: Each ``path=value``. A value is read as Python or YAML would read it; words that
            are neither stay text, also in lists and dicts. ``a,b`` is the list of both.

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
        is_launcher = (path, text) == ("launcher", "none")
        parsed[path] = text if is_launcher else _value(text, option)
    return parsed


def _value(text: str, option: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for source in (text, _QUOTED_OR_WORD.sub(_as_literal, text)):
        try:
            value = ast.literal_eval(source)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, set):  # {epoch} is part of a file name
            break
        return list(value) if isinstance(value, tuple) and not text.startswith("(") else value
    if text.startswith(("[", "(")):
        raise ConfigError(f"{option!r} was given; its brackets do not match.")
    return text


def _as_literal(match: re.Match[str]) -> str:
    """Return a bare word as a literal of Python."""
    word = match[0]
    try:
        ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return repr(_WORDS.get(word.lower(), word))
    return word
