"""From what a user wrote under ``compile`` to checked keyword arguments of ``torch.compile``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ._errors import ConfigError, TorchVersionError
from ._suggestion import suggest
from ._torch import (
    backend_names,
    compile_keywords,
    compiles_optimizers,
    inductor_modes,
    inductor_options,
    require_compile,
    version_limit,
)

TARGETS = ("forward", "train_step", "val_step", "test_step", "loss", "predict")
ON_ERROR = ("raise", "eager")
ON_RECOMPILE = ("dynamic", "eager", "raise")
# Ours; the others are torch.compile's own.
OWN_KEYS = ("target", "regions", "on_error", "on_recompile", "recompile_limit", "optimizer")
# Dynamo keeps 8 versions of one function; besides recompilations it keeps the first version and
# those of modules that look alike and are not.
_DEFAULT_RECOMPILE_LIMIT = 4
_VERSIONS_RESERVED = 4

# Types of the keywords that a config file can get wrong; None always means "not given".
# Keywords of torch.compile that are missing here are passed on, and torch checks them.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "target": ((str, list, tuple), "a method's name or a list of names"),
    "regions": ((str, list, tuple), "'auto' or a list of patterns such as 'layers.*'"),
    "on_error": ((str,), "'raise' or 'eager'"),
    "on_recompile": ((str,), "'dynamic', 'eager' or 'raise'"),
    "recompile_limit": ((int,), "a number of recompilations, 0 or more"),
    "optimizer": ((bool,), "True or False"),
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
        target: Which methods of the model, of ``TARGETS``.
        regions: ``"auto"``, patterns of module names, or None for the whole model.
        on_error: What happens where something does not compile, of ``ON_ERROR``.
        on_recompile: What happens beyond ``recompile_limit``, of ``ON_RECOMPILE``.
        recompile_limit: How often a region may be compiled again, in each mode.
        optimizer: Whether ``compile_optimizer`` compiles.
        keywords: Keyword arguments for ``torch.compile``; without ``disable``.
    """

    enabled: bool
    target: tuple[str, ...] = ("forward",)
    regions: str | tuple[str, ...] | None = None
    on_error: str = "raise"
    on_recompile: str = "dynamic"
    recompile_limit: int = _DEFAULT_RECOMPILE_LIMIT
    optimizer: bool = False
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
    _check_choices(given)
    _check_combination(given)
    own = {key: given.pop(key) for key in OWN_KEYS if key in given}
    own["target"] = _names(own.get("target", "forward"))
    if isinstance(own.get("regions"), (list, tuple)):
        own["regions"] = tuple(own["regions"])
    enabled = not given.pop("disable", False)
    if "options" in given:
        # torch.compile takes entries out of the dict that it is given.
        given["options"] = dict(given["options"])
    return CompileConfig(enabled=enabled, keywords=given, **own)


def check_against_torch(config: CompileConfig) -> None:
    """Check what only the installed torch knows: backend, mode and options.

    Raises:
        TorchVersionError: If this torch cannot compile at all, or no optimizer that it should.
        ConfigError: If it does not know the backend, or inductor the mode or an option.
    """
    require_compile()
    _check_recompile_limit(config.recompile_limit)
    if config.optimizer and not compiles_optimizers():
        raise TorchVersionError(
            f"compile.optimizer needs PyTorch >= 2.4; this is PyTorch {torch.__version__}. Upgrade "
            "torch, or leave optimizer out."
        )
    backend = config.keywords.get("backend", "inductor")
    if backend == "inductor":
        _check_for_inductor(config.keywords)
    elif isinstance(backend, str) and backend not in (known := backend_names()):
        raise ConfigError(f"compile backend {backend!r} does not exist. {suggest(backend, known)}")


def _check_keys(cfg: Mapping[str, Any]) -> None:
    known = tuple(dict.fromkeys((*OWN_KEYS, *compile_keywords())))
    for key in cfg:
        if key not in known:
            raise ConfigError(f"compile has no argument {key!r}. {suggest(key, known)}")


def _check_types(given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        types, wanted = _TYPES.get(key, ((object,), "anything"))
        if not isinstance(value, types):
            raise ConfigError(f"compile.{key} is {value!r}; it takes {wanted}.")


def _names(target: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return (target,) if isinstance(target, str) else tuple(dict.fromkeys(target))


def _check_choices(given: Mapping[str, Any]) -> None:
    chosen: list[tuple[str, str, tuple[str, ...]]] = [
        ("target", name, TARGETS) for name in _names(given.get("target", "forward"))
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
    if regions != "auto" and (isinstance(regions, str) or not regions):
        raise ConfigError(
            f"compile.regions is {regions!r}; it takes 'auto' or a list of patterns of module "
            "names, such as ['layers.*']."
        )


def _check_combination(given: Mapping[str, Any]) -> None:
    if not given.get("target", "forward"):
        raise ConfigError("compile.target names nothing; leave it out for 'forward'.")
    if "regions" in given and _names(given.get("target", "forward")) != ("forward",):
        raise ConfigError(
            f"compile has regions={given['regions']!r} and target={given['target']!r}; regions are "
            "modules whose forward is compiled. Drop one of the two."
        )
    limit = given.get("recompile_limit", 0)
    if isinstance(limit, bool) or limit < 0:
        raise ConfigError(f"compile.recompile_limit is {limit!r}; it takes 0 or more.")
    if "mode" in given and "options" in given:
        raise ConfigError(
            f"compile has mode={given['mode']!r} and options={given['options']!r}; torch.compile "
            "takes one of them. Write the mode's options out, or drop one."
        )


def _check_recompile_limit(limit: int) -> None:
    most = version_limit() - _VERSIONS_RESERVED
    if limit > most:
        raise ConfigError(
            f"compile.recompile_limit is {limit}; dynamo, which keeps {version_limit()} versions "
            f"of a function, allows {most}. Raise torch._dynamo.config.cache_size_limit too."
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
