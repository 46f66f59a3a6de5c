"""Read a configuration file, YAML, JSON or Python, and the files that it inherits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mm_runner._untrusted import check_nesting
from mm_runner.errors import ConfigError, did_you_mean

from ._config_dict import DELETE, copy_containers, merge_into
from ._installed import find_file
from ._places import describe_location
from ._python import BASE, read_python
from ._substitution import substitute, write_values

SUFFIXES = (".py", ".yaml", ".yml", ".json")


class Sources(NamedTuple):
    """A configuration, its files, and the helpers that the first file defines."""

    content: dict[str, Any]
    files: list[Path]
    text: str
    helpers: dict[str, Any]


def load(file: Path, chain: Sequence[Path] = (), text: str | None = None) -> Sources:
    """Read ``file`` and merge it over the files of its ``_base_``, relative to itself."""
    if file in chain:
        cycle = " -> ".join(map(str, (*chain[chain.index(file) :], file)))
        raise ConfigError(f"{chain[-1]}: {BASE}: the files inherit each other: {cycle}.")
    text = _text_of(file, chain) if text is None else text
    files = [file]

    def inherit(base: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        inherited: dict[str, Any] = {}
        helpers: dict[str, Any] = {}
        listed = [] if base is None else [base] if isinstance(base, str) else base
        if not isinstance(listed, (list, tuple)) or not all(isinstance(one, str) for one in listed):
            raise ConfigError(f"{file}: {BASE}: a path or a list of paths is needed, got {base!r}.")
        for parent in listed:
            found = load(find_file(parent, file.parent).resolve(), (*chain, file))
            files.extend(found.files)
            twice = inherited.keys() & found.content.keys()
            if twice:
                raise ConfigError(
                    f"{file}: {BASE}: {parent} sets {', '.join(sorted(twice))}, which a file "
                    "before it sets too; which of them counts is not clear. Let one inherit the "
                    "other."
                )
            inherited.update(found.content)
            helpers.update(found.helpers)
        return inherited, helpers

    has_braces = "{{" in text
    written = write_values(text, file) if has_braces else text
    if file.suffix == ".py":
        base, own, helpers = read_python(file, written, inherit)
    else:
        own = _parse(file, written)
        base, helpers = inherit(own.pop(BASE, None))[0], {}
    try:
        if has_braces:
            base, own = substitute(base, file, base), substitute(own, file, base)
        # Copied: keys share no list, and modules keep their values.
        content: dict[str, Any] = copy_containers(base)
        merge_into(content, own, is_strict=True)
    except ConfigError as error:
        raise ConfigError(f"{describe_location([file], str(error)) or file}: {error}") from error
    return Sources(copy_containers(content, {DELETE}), files, text, helpers)


def _text_of(file: Path, chain: Sequence[Path]) -> str:
    by_whom = f"{chain[-1]}: {BASE}: " if chain else ""
    if file.suffix not in SUFFIXES:
        raise ConfigError(
            f"{by_whom}{file} was given; a configuration is a file that ends in "
            f"{', '.join(SUFFIXES)}."
        )
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = [one.name for one in file.parent.glob("*") if one.suffix in SUFFIXES]
        hint = did_you_mean(file.name, beside)
        raise ConfigError(f"{by_whom}{file} does not exist.{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{by_whom}{file} cannot be read: {error}") from error


def _parse(file: Path, text: str) -> dict[str, Any]:
    """Parse YAML or JSON; nothing of the text is run."""
    own: Any
    try:
        if file.suffix == ".json":
            own = json.loads(text)
        else:
            from ._yaml import parse_yaml  # noqa: PLC0415 - importing mm_runner stays cheap

            own = parse_yaml(file, text)
        check_nesting(own, len(text))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}:{error.lineno}: this is not JSON: {error.msg}") from error
    except RecursionError:
        raise ConfigError(f"{file}: it is nested too deeply.") from None
    except ConfigError:
        raise
    except ValueError as error:  # of an integer with thousands of digits, too
        raise ConfigError(f"{file}: {error}") from error
    own = {} if own is None else own
    if not isinstance(own, dict) or not all(isinstance(key, str) for key in own):
        raise ConfigError(f"{file}: keys with values are needed at the top, got {own!r:.80}.")
    return own
