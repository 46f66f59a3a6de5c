"""What CheckpointHook accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mm_runner._untrusted import is_file_name
from mm_runner.errors import ConfigError

__all__ = [
    "check_begin",
    "check_integers",
    "check_minutes",
    "check_template",
    "is_of_template",
    "name_list",
    "refuse_backends",
]


def check_integers(**arguments: Any) -> None:
    """Refuse what is no integer.

    Raises:
        ConfigError: Naming the argument.
    """
    for name, value in arguments.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"CheckpointHook.{name}: an integer is needed, got {value!r}.")


def check_begin(save_begin: int) -> None:
    """Refuse a number of epochs, or steps, that is none."""
    if save_begin < 0:
        raise ConfigError(
            f"CheckpointHook.save_begin: an integer >= 0 is needed, got {save_begin!r}."
        )


def check_minutes(minutes: Any) -> None:
    """Refuse what is neither ``None`` nor a positive number."""
    is_number = isinstance(minutes, (int, float)) and not isinstance(minutes, bool)
    if minutes is not None and not (is_number and minutes > 0):
        raise ConfigError(
            f"CheckpointHook.minutes: a positive number of minutes is needed, got {minutes!r}."
        )


def check_template(template: Any) -> None:
    """Refuse a file name without a place for the number."""
    if not isinstance(template, str) or "{}" not in template:
        raise ConfigError(
            "CheckpointHook.filename_tmpl: '{}' must stand for the epoch or the step, got "
            f"{template!r}."
        )
    if {"/", "\\"} & set(template):
        raise ConfigError(
            "CheckpointHook.filename_tmpl: the name of a file is needed, got the path "
            f"{template!r}. Give the directory as out_dir."
        )


def is_of_template(name: str, template: str) -> bool:
    """Tell whether ``name`` is a file name that ``template`` gives for some number."""
    before, _, after = template.partition("{}")
    number = name.removeprefix(before).removesuffix(after)
    return number.isdecimal() and name == f"{before}{number}{after}" and is_file_name(name)


def refuse_backends(**arguments: Any) -> None:
    """Refuse MMEngine's storage back ends: files are written to directories here."""
    for name, value in arguments.items():
        if value is not None:
            raise ConfigError(
                f"CheckpointHook.{name}: {value!r} was given; checkpoints are written to a "
                "directory. Leave it out, and mount the storage as a directory for out_dir."
            )


def name_list(value: Any, argument: str) -> list[str]:
    """Return names as a list: of ``None`` none, of text one.

    Raises:
        ConfigError: If ``value`` is something else than these or a list of text.
    """
    if value is None:
        return []
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"CheckpointHook.{argument}: a name or a list of names is needed, got {value!r}."
        )
    return list(names)
