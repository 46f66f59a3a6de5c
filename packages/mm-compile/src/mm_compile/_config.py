"""From what a user wrote under ``compile`` to checked keyword arguments of ``torch.compile``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ._backend_keywords import untaken
from ._cache._code_cache import CodeCache
from ._cache._directory import parse_cache
from ._cache._inductor import require_cache
from ._config_checks import (
    OWN_KEYS,
    check_choices,
    check_combination,
    check_keys,
    check_types,
    target_names,
)
from ._errors import ConfigError, TorchVersionError
from ._receipt._config import check_receipt, number_of_steps
from ._suggestion import suggest
from ._torch import (
    backend_names,
    compiles_optimizers,
    inductor_modes,
    inductor_options,
    largest_version_limit,
    require_compile,
    takes_version_limit,
)
from ._verify._config import VerifyConfig, parse_verify

# What the shortest form of "as much as pays" means: nothing that can go wrong ends the run.
AUTO: Mapping[str, Any] = {"disable": "auto", "regions": "auto", "on_error": "eager"}
# Dynamo keeps 8 versions of one function if it is not told otherwise; besides recompilations it
# keeps the first version and those of modules that look alike and are not.
_DEFAULT_RECOMPILE_LIMIT = 4
_VERSIONS_RESERVED = 4


@dataclass(frozen=True)
class CompileConfig:
    """A checked compile config.

    Attributes:
        enabled: Whether anything is to be compiled.
        target: Which methods of the model, as :func:`mm_compile.compile_model` names them.
        regions: ``"auto"``, patterns of module names, or None for the whole model.
        on_error: What happens where something does not compile, ``raise`` or ``eager``.
        on_recompile: What happens beyond ``recompile_limit``, ``dynamic``, ``eager`` or
            ``raise``.
        recompile_limit: How often a region may be compiled again, in each mode.
        optimizer: Whether ``compile_optimizer`` compiles.
        cache: Where compiled code is kept, or None.
        is_cache_trusted: Whether code there is run whoever can write it.
        code_cache: What keeps it there; for a config whose model is being compiled.
        auto: Whether only that is compiled which pays.
        measure: Training steps that run eagerly at first, to be timed.
        verify: How compiled code is compared with eager code; None for not at all.
        keywords: Keyword arguments for ``torch.compile``; without ``disable``.
    """

    enabled: bool
    target: tuple[str, ...] = ("forward",)
    regions: str | tuple[str, ...] | None = None
    on_error: str = "raise"
    on_recompile: str = "dynamic"
    recompile_limit: int = _DEFAULT_RECOMPILE_LIMIT
    optimizer: bool = False
    cache: Path | None = None
    is_cache_trusted: bool = False
    code_cache: CodeCache | None = field(default=None, compare=False)
    auto: bool = False
    measure: int = 0
    verify: VerifyConfig | None = None
    keywords: dict[str, Any] = field(default_factory=dict)

    @property
    def num_versions(self) -> int:
        """How many versions of one function dynamo has to keep for this."""
        return self.recompile_limit + _VERSIONS_RESERVED


def parse_config(cfg: bool | str | Mapping[str, Any] | None) -> CompileConfig:  # noqa: FBT001 - a config value
    """Read ``cfg`` without changing it, and check what needs no compiler.

    Args:
        cfg: True, False, None, ``"auto"``, or keyword arguments of ``torch.compile`` plus ours.

    Returns:
        The config; not enabled for False, None and ``disable=True``.

    Raises:
        ConfigError: If a key is unknown, a value has the wrong type, or two values exclude each
            other.
    """
    if cfg is None or isinstance(cfg, bool):
        return CompileConfig(enabled=bool(cfg))
    if cfg == "auto":
        cfg = AUTO
    if not isinstance(cfg, Mapping):
        raise ConfigError(
            f"compile is {cfg!r}; it takes True, False, None, 'auto' or a dict of "
            "torch.compile's arguments. Write compile=True for the defaults."
        )
    given = {key: value for key, value in cfg.items() if value is not None}
    check_keys(cfg)
    check_types(given)
    check_choices(given)
    check_combination(given)
    check_receipt(given, target_names(given.get("target", "forward")))
    own = {key: given.pop(key) for key in OWN_KEYS if key in given}
    own["target"] = target_names(own.get("target", "forward"))
    own["cache"], own["is_cache_trusted"] = parse_cache(own.get("cache", False))
    if isinstance(own.get("regions"), (list, tuple)):
        own["regions"] = tuple(own["regions"])
    own["measure"] = number_of_steps(own.get("measure", 0))
    own["verify"] = parse_verify(own.get("verify", 0))
    own["auto"] = given.get("disable") == "auto"
    enabled = given.pop("disable", False) in (False, "auto")
    if "options" in given:
        # torch.compile takes entries out of the dict that it is given.
        given["options"] = dict(given["options"])
    return CompileConfig(enabled=enabled, keywords=given, **own)


def with_keywords(cfg: Any, keywords: Mapping[str, Any]) -> Any:
    """Return ``cfg`` with more keys; what is off stays off.

    Raises:
        ConfigError: If a key is in both.
    """
    if not keywords or cfg is None or cfg is False:
        return cfg
    if cfg is True:
        return keywords
    if cfg == "auto":
        return {**AUTO, **keywords}
    if not isinstance(cfg, Mapping):
        return cfg  # which is refused
    for key in keywords.keys() & cfg.keys():
        raise ConfigError(
            f"compile_model got {key}={keywords[key]!r}, and {cfg[key]!r} for it in the config. "
            "Give it once."
        )
    return {**cfg, **keywords}


def check_against_torch(config: CompileConfig) -> None:
    """Check what only the installed torch knows: backend, mode and options.

    Raises:
        TorchVersionError: If this torch cannot compile at all, or no optimizer that it should.
        ConfigError: If it does not know the backend or the mode, or inductor an option.
    """
    require_compile()
    _check_recompile_limit(config.recompile_limit)
    if config.optimizer and not compiles_optimizers():
        raise TorchVersionError(
            f"compile.optimizer needs PyTorch >= 2.4; this is PyTorch {torch.__version__}. Upgrade "
            "torch, or leave optimizer out."
        )
    if config.cache is not None:
        require_cache()
    backend = config.keywords.get("backend", "inductor")
    if backend == "inductor":
        _check_for_inductor(config.keywords)
        return
    if isinstance(backend, str) and backend not in (known := backend_names()):
        raise ConfigError(f"compile backend {backend!r} does not exist. {suggest(backend, known)}")
    if "mode" in untaken(config.keywords):  # one that takes modes may have others
        _check_mode(config.keywords)


def _check_recompile_limit(limit: int) -> None:
    versions = largest_version_limit()
    if limit > versions - _VERSIONS_RESERVED:
        setting = "accumulated_recompile_limit" if takes_version_limit() else "cache_size_limit"
        raise ConfigError(
            f"compile.recompile_limit is {limit}; dynamo, which keeps {versions} versions of a "
            f"function, allows {versions - _VERSIONS_RESERVED}. Raise torch._dynamo.config."
            f"{setting} too."
        )


def _check_mode(keywords: Mapping[str, Any]) -> None:
    mode = keywords.get("mode", "default")
    modes = inductor_modes()
    if mode not in modes:
        raise ConfigError(f"compile mode {mode!r} does not exist. {suggest(mode, modes)}")


def _check_for_inductor(keywords: Mapping[str, Any]) -> None:
    _check_mode(keywords)
    known = inductor_options()
    for option in keywords.get("options", ()):
        # torch accepts dashes for underscores.
        if known is not None and option.replace("-", "_") not in known:
            raise ConfigError(f"inductor has no option {option!r}. {suggest(option, known)}")
