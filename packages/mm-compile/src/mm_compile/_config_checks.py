"""What of a compile config needs neither torch's opinion nor a model to be checked."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from ._errors import ConfigError
from ._suggestion import suggest
from ._torch import compile_keywords

TARGETS = ("forward", "train_step", "val_step", "test_step", "loss", "predict")
ON_ERROR = ("raise", "eager")
ON_RECOMPILE = ("dynamic", "eager", "raise")
# Ours; the others are torch.compile's own.
OWN_KEYS = (
    "target",
    "regions",
    "on_error",
    "on_recompile",
    "recompile_limit",
    "optimizer",
    "cache",
    "measure",
    "verify",
)
# Types of the keywords that a config file can get wrong; None always means "not given".
# Keywords of torch.compile that are missing here are passed on, and torch checks them.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "target": ((str, list, tuple), "a method's name or a list of names"),
    "regions": ((str, list, tuple), "'auto' or a list of patterns such as 'layers.*'"),
    "on_error": ((str,), "'raise' or 'eager'"),
    "on_recompile": ((str,), "'dynamic', 'eager' or 'raise'"),
    "recompile_limit": ((int,), "a number of recompilations, 0 or more"),
    "optimizer": ((bool,), "True or False"),
    "cache": ((str, os.PathLike, bool, Mapping), "a directory, or dict(dir=..., trusted=True)"),
    "backend": ((str, Callable), "a backend's name or a callable"),  # type: ignore[dict-item]
    "mode": ((str,), "a string"),
    "dynamic": ((bool,), "True or False"),
    "fullgraph": ((bool,), "True or False"),
    "options": ((dict,), "a dict"),
    "disable": ((bool, str), "True, False or 'auto'"),
    "measure": ((int,), "True or a number of steps"),
    "verify": ((int, Mapping), "True, a number of training calls or a dict"),
}


def check_keys(cfg: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a key that neither torch.compile nor this package knows."""
    known = tuple(dict.fromkeys((*OWN_KEYS, *compile_keywords())))
    for key in cfg:
        if key not in known:
            raise ConfigError(f"compile has no argument {key!r}. {suggest(key, known)}")


def check_types(given: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a value of the wrong type; None is not in ``given``."""
    for key, value in given.items():
        types, wanted = _TYPES.get(key, ((object,), "anything"))
        if not isinstance(value, types):
            raise ConfigError(f"compile.{key} is {value!r}; it takes {wanted}.")


def target_names(target: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return the targets, each once, in the order given."""
    if isinstance(target, str):
        return (target,)
    # What is no name may not be hashable either; it is refused with the other unknown names.
    return tuple(dict.fromkeys(name if isinstance(name, str) else repr(name) for name in target))


def check_choices(given: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a name that is none of those to choose from."""
    chosen: list[tuple[str, str, tuple[str, ...]]] = [
        ("target", name, TARGETS) for name in target_names(given.get("target", "forward"))
    ]
    chosen += [
        (key, given[key], known)
        for key, known in (("on_error", ON_ERROR), ("on_recompile", ON_RECOMPILE))
        if key in given
    ]
    for key, name, known in chosen:
        if name not in known:
            raise ConfigError(f"compile.{key} {name!r} does not exist. {suggest(name, known)}")
    regions = given.get("regions", "auto")
    is_list = not isinstance(regions, str) and regions and all(isinstance(e, str) for e in regions)
    if regions != "auto" and not is_list:
        raise ConfigError(
            f"compile.regions is {regions!r}; it takes 'auto' or a list of patterns of module "
            "names, such as ['layers.*']."
        )


def check_combination(given: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for values that cannot work, or not together."""
    if not given.get("target", "forward"):
        raise ConfigError("compile.target names nothing; leave it out for 'forward'.")
    if "regions" in given and target_names(given.get("target", "forward")) != ("forward",):
        raise ConfigError(
            f"compile has regions={given['regions']!r} and target={given['target']!r}; regions are "
            "modules whose forward is compiled. Drop one of the two."
        )
    limit = given.get("recompile_limit", 0)
    if isinstance(limit, bool) or limit < 0:
        raise ConfigError(f"compile.recompile_limit is {limit!r}; it takes 0 or more.")
    if not all(isinstance(name, str) for name in given.get("options", ())):
        raise ConfigError(
            f"compile.options is {given['options']!r}; its keys are names of options."
        )
    if "mode" in given and "options" in given:
        raise ConfigError(
            f"compile has mode={given['mode']!r} and options={given['options']!r}; torch.compile "
            "takes one of them. Write the mode's options out, or drop one."
        )
