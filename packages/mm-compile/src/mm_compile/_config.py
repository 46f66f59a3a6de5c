"""From what a user wrote under ``compile`` to checked keyword arguments of ``torch.compile``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._errors import ConfigError
from ._suggestion import suggest
from ._torch import (
    backend_names,
    compile_keywords,
    inductor_modes,
    inductor_options,
    require_compile,
)

TARGETS = ("forward", "train_step")

# Types of the keywords that a config file can get wrong; None always means "not given".
# Keywords of torch.compile that are missing here are passed on, and torch checks them.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "target": ((str,), "a string"),
    "backend": ((str, Callable), "a backend's name or a callable"),  # type: ignore[dict-item]
    "mode": ((str,), "a string"),
    "dynamic": ((bool,), "True or False"),
    "fullgraph": ((bool,), "True or False"),
    "options": ((dict,), "a dict"),
    "disable": ((bool,), "True or False"),
}


@dataclass(frozen=True)
class CompileConfig:
    """A checked compile config.

    Attributes:
        enabled: Whether anything is to be compiled.
        target: Which callable of the model: one of ``TARGETS``.
        keywords: Keyword arguments for ``torch.compile``; without ``disable``.
    """

    enabled: bool
    target: str = "forward"
    keywords: dict[str, Any] = field(default_factory=dict)


def parse_config(cfg: bool | Mapping[str, Any] | None) -> CompileConfig:  # noqa: FBT001 - a config value
    """Read ``cfg`` without changing it, and check what needs no compiler.

    Args:
        cfg: True, False, None, or keyword arguments of ``torch.compile`` plus ``target``.

    Returns:
        The config; not enabled for False, None and ``disable=True``.

    Raises:
        ConfigError: If a key is unknown, a value has the wrong type, or two values exclude each
            other.
    """
    if cfg is None or isinstance(cfg, bool):
        return CompileConfig(enabled=bool(cfg))
    if not isinstance(cfg, Mapping):
        raise ConfigError(
            f"compile is {cfg!r}; it takes True, False, None or a dict of torch.compile's "
            "arguments. Write compile=True for the defaults."
        )
    given = {key: value for key, value in cfg.items() if value is not None}
    _check_keys(cfg)
    _check_types(given)
    _check_combination(given)
    target = given.pop("target", "forward")
    enabled = not given.pop("disable", False)
    if "options" in given:
        # torch.compile takes entries out of the dict that it is given.
        given["options"] = dict(given["options"])
    return CompileConfig(enabled=enabled, target=target, keywords=given)


def check_against_torch(config: CompileConfig) -> None:
    """Check what only the installed torch knows: backend, mode and options.

    Raises:
        TorchVersionError: If this torch cannot compile at all.
        ConfigError: If it does not know the backend, or inductor the mode or an option.
    """
    require_compile()
    backend = config.keywords.get("backend", "inductor")
    if backend == "inductor":
        _check_for_inductor(config.keywords)
    elif isinstance(backend, str) and backend not in (known := backend_names()):
        raise ConfigError(f"compile backend {backend!r} does not exist. {suggest(backend, known)}")


def _check_keys(cfg: Mapping[str, Any]) -> None:
    known = ("target", *compile_keywords())
    for key in cfg:
        if key not in known:
            raise ConfigError(f"compile has no argument {key!r}. {suggest(key, known)}")


def _check_types(given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        types, wanted = _TYPES.get(key, ((object,), "anything"))
        if not isinstance(value, types):
            raise ConfigError(f"compile.{key} is {value!r}; it takes {wanted}.")


def _check_combination(given: Mapping[str, Any]) -> None:
    target = given.get("target", "forward")
    if target not in TARGETS:
        raise ConfigError(f"compile.target {target!r} does not exist. {suggest(target, TARGETS)}")
    if "mode" in given and "options" in given:
        raise ConfigError(
            f"compile has mode={given['mode']!r} and options={given['options']!r}; torch.compile "
            "takes one of them. Write the mode's options out, or drop one."
        )


def _check_for_inductor(keywords: Mapping[str, Any]) -> None:
    mode = keywords.get("mode", "default")
    modes = inductor_modes()
    if mode not in modes:
        raise ConfigError(f"compile mode {mode!r} does not exist. {suggest(mode, modes)}")
    known = inductor_options()
    for option in keywords.get("options", ()):
        # torch accepts dashes for underscores.
        if known is not None and option.replace("-", "_") not in known:
            raise ConfigError(f"inductor has no option {option!r}. {suggest(option, known)}")
