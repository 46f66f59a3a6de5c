"""The compile config: parsed, checked, and checked against the installed torch."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._backend import unsupported_keywords
from ._cache._code_cache import CodeCache
from ._cache._directory import parse_cache
from ._errors import ConfigError
from ._torch import (
    backend_names,
    compile_keywords,
    inductor_modes,
    inductor_options,
    largest_version_limit,
    require_compile,
    require_torch_2_4,
    takes_version_limit,
)
from ._words import suggest

TARGETS = ("forward", "train_step", "val_step", "test_step", "loss", "predict")
# Targets that may run twice in a step: they step no optimizer.
REPEATABLE = ("forward", "loss", "predict")
# Targets that run in training.
TRAINED = ("forward", "loss", "train_step")
_CHOICES = {
    "target": TARGETS,
    "on_error": ("raise", "eager"),
    "on_recompile": ("dynamic", "eager", "raise"),
}
# Keys of this package; the others are torch.compile's.
_OWN_KEYS = (
    *_CHOICES,
    "regions",
    "recompile_limit",
    "optimizer",
    "cache",
    "measure",
    "verify",
)
# Types of values, and their description. torch checks keywords that are missing here.
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
_VERIFY_KEYS = ("steps", "rtol", "atol")
_AUTO: Mapping[str, Any] = {"disable": "auto", "regions": "auto", "on_error": "eager"}
# Eager steps to time for measure=True.
_DEFAULT_MEASURE = 8
# Dynamo keeps 8 versions of a function by default: the first one, recompilations, and those of
# modules that only look alike.
_DEFAULT_RECOMPILE_LIMIT = 4
_VERSIONS_RESERVED = 4


@dataclass(frozen=True)
class VerifyConfig:
    """A checked ``verify``.

    Attributes:
        steps: Training calls of each region to compare.
        rtol: Allowed deviation, relative to the largest element; None for the dtype's default.
        atol: Allowed deviation of any element; None for the dtype's default.
    """

    steps: int
    rtol: float | None = None
    atol: float | None = None


@dataclass(frozen=True)
class CompileConfig:
    """A checked compile config.

    Attributes:
        enabled: Whether to compile anything.
        target: Methods of the model, as :func:`mm_compile.compile_model` names them.
        regions: ``"auto"``, patterns of module names, or None for the whole model.
        on_error: What to do where something does not compile, ``raise`` or ``eager``.
        on_recompile: What to do beyond ``recompile_limit``: ``dynamic``, ``eager`` or ``raise``.
        recompile_limit: Recompilations of a region allowed in each mode.
        optimizer: Whether ``compile_optimizer`` compiles.
        cache: Directory for compiled code, or None.
        is_cache_trusted: Whether to run cached code that other users can write.
        code_cache: The open cache of a model that is being compiled.
        auto: Whether to compile only if it pays.
        measure: Training steps to run eagerly at first and time.
        verify: How to compare compiled with eager code; None for not at all.
        keywords: Arguments for ``torch.compile``, without ``disable``.
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
        """How many versions of one function dynamo has to keep."""
        return self.recompile_limit + _VERSIONS_RESERVED


def with_keywords(cfg: Any, keywords: Mapping[str, Any]) -> Any:
    """Return ``cfg`` with more keys; a config that is off stays off.

    Raises:
        ConfigError: If a key is in both.
    """
    if not keywords or cfg is None or cfg is False:
        return cfg
    if cfg is True:
        return keywords
    if cfg == "auto":
        return {**_AUTO, **keywords}
    if not isinstance(cfg, Mapping):
        return cfg  # refused by parse_config
    for key in keywords.keys() & cfg.keys():
        raise ConfigError(
            f"compile_model got {key}={keywords[key]!r}, and {cfg[key]!r} for it in the config. "
            "Give it once."
        )
    return {**cfg, **keywords}


def parse_config(cfg: bool | str | Mapping[str, Any] | None) -> CompileConfig:  # noqa: FBT001 - a config value
    """Parse ``cfg`` without changing it, and check what needs no compiler.

    Args:
        cfg: True, False, None, ``"auto"``, or arguments of ``torch.compile`` and keys of ours.

    Returns:
        The config; not enabled for False, None and ``disable=True``.

    Raises:
        ConfigError: If a key is unknown, a value has the wrong type, or two values exclude each
            other.
    """
    if cfg is None or isinstance(cfg, bool):
        return CompileConfig(enabled=bool(cfg))
    if cfg == "auto":
        cfg = _AUTO
    if not isinstance(cfg, Mapping):
        raise ConfigError(
            f"compile is {cfg!r}; it takes True, False, None, 'auto' or a dict of "
            "torch.compile's arguments. Write compile=True for the defaults."
        )
    _check_keys_and_types(cfg)
    given = {key: value for key, value in cfg.items() if value is not None}
    target = given.get("target", "forward")
    # Names of the wrong type may not be hashable; they are refused as unknown names.
    names = [target] if isinstance(target, str) else map(str, target)
    targets = tuple(dict.fromkeys(names))
    _check_choices(given, targets)
    _check_combination(given, targets)
    _check_training(given, targets)
    own = {key: given.pop(key) for key in _OWN_KEYS if key in given}
    own["target"] = targets
    own["cache"], own["is_cache_trusted"] = parse_cache(own.get("cache", False))
    if isinstance(own.get("regions"), (list, tuple)):
        own["regions"] = tuple(own["regions"])
    measure = own.get("measure", 0)
    own["measure"] = _DEFAULT_MEASURE if measure is True else measure
    own["verify"] = _parse_verify(own.get("verify", 0))
    own["auto"] = given.get("disable") == "auto"
    enabled = given.pop("disable", False) in (False, "auto")
    if "options" in given:
        # torch.compile removes entries from the dict that it is given.
        given["options"] = dict(given["options"])
    return CompileConfig(enabled=enabled, keywords=given, **own)


def check_against_torch(config: CompileConfig) -> None:
    """Check what only the installed torch knows: backend, mode and options.

    Raises:
        TorchVersionError: If this torch cannot compile, cache or compile optimizers as asked.
        ConfigError: If it does not know the backend, the mode, or an option of inductor.
    """
    require_compile()
    limit = largest_version_limit()
    if config.num_versions > limit:
        setting = "accumulated_recompile_limit" if takes_version_limit() else "cache_size_limit"
        raise ConfigError(
            f"compile.recompile_limit is {config.recompile_limit}; dynamo, which keeps {limit} "
            f"versions of a function, allows {limit - _VERSIONS_RESERVED}. Raise "
            f"torch._dynamo.config.{setting} too."
        )
    if config.optimizer:
        require_torch_2_4("optimizer", "which compiles a learning rate in a tensor")
    if config.cache is not None:
        require_torch_2_4("cache", "whose inductor caches compiled graphs")
    if config.verify is not None:
        require_torch_2_4("verify", "which names the dtype of autocast for every device")
    backend = config.keywords.get("backend", "inductor")
    if isinstance(backend, str) and backend != "inductor" and backend not in backend_names():
        known = backend_names()
        raise ConfigError(f"compile backend {backend!r} does not exist. {suggest(backend, known)}")
    # Another backend that takes modes may have others.
    if backend == "inductor" or "mode" in unsupported_keywords(config.keywords):
        mode, modes = config.keywords.get("mode", "default"), inductor_modes()
        if mode not in modes:
            raise ConfigError(f"compile mode {mode!r} does not exist. {suggest(mode, modes)}")
    options = inductor_options() if backend == "inductor" else None
    for option in config.keywords.get("options", ()):
        # torch accepts dashes for underscores.
        if options is not None and option.replace("-", "_") not in options:
            raise ConfigError(f"inductor has no option {option!r}. {suggest(option, options)}")


def _check_keys_and_types(cfg: Mapping[str, Any]) -> None:
    known = tuple(dict.fromkeys((*_OWN_KEYS, *compile_keywords())))
    for key, value in cfg.items():
        if key not in known:
            raise ConfigError(f"compile has no argument {key!r}. {suggest(key, known)}")
        types, wanted = _TYPES.get(key, ((object,), "anything"))
        if value is not None and not isinstance(value, types):
            raise ConfigError(f"compile.{key} is {value!r}; it takes {wanted}.")


def _check_choices(given: Mapping[str, Any], targets: tuple[str, ...]) -> None:
    for key, known in _CHOICES.items():
        chosen = targets if key == "target" else (given[key],) if key in given else ()
        for name in chosen:
            if name not in known:
                raise ConfigError(f"compile.{key} {name!r} does not exist. {suggest(name, known)}")
    regions = given.get("regions", "auto")
    is_list = not isinstance(regions, str) and regions and all(isinstance(e, str) for e in regions)
    if regions != "auto" and not is_list:
        raise ConfigError(
            f"compile.regions is {regions!r}; it takes 'auto' or a list of patterns of module "
            "names, such as ['layers.*']."
        )
    disable = given.get("disable", False)
    if isinstance(disable, str) and disable != "auto":
        raise ConfigError(f"compile.disable is {disable!r}; it takes True, False or 'auto'.")


def _check_combination(given: Mapping[str, Any], targets: tuple[str, ...]) -> None:
    if not targets:
        raise ConfigError("compile.target is empty; leave it out for 'forward'.")
    if "regions" in given and targets != ("forward",):
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


def _check_training(given: Mapping[str, Any], targets: tuple[str, ...]) -> None:
    """Check what can be timed in training, or run twice."""
    is_auto = given.get("disable") == "auto"
    measure = given.get("measure", 0)
    if measure < 0:
        raise ConfigError(f"compile.measure is {measure!r}; it takes 0 or more steps.")
    if is_auto and (len(targets) != 1 or targets[0] not in TRAINED):
        raise ConfigError(
            f"compile has disable='auto' and target={given['target']!r}; 'auto' weighs one method "
            f"that trains: {', '.join(map(repr, TRAINED))}. Name one, or drop 'auto'."
        )
    if is_auto and given.get("optimizer"):
        raise ConfigError(
            "compile has disable='auto' and optimizer=True; 'auto' weighs the model alone. Drop "
            "one of the two."
        )
    if is_auto and measure:
        raise ConfigError(
            f"compile has disable='auto' and measure={measure!r}; 'auto' times eager steps "
            "itself. Drop measure."
        )
    if measure and not set(targets) & set(TRAINED):
        raise ConfigError(
            f"compile has measure={measure!r} and target={given['target']!r}; only training steps "
            "are timed, and none of these runs in one. Use target='forward', or drop measure."
        )
    # An empty dict is a verify with its defaults.
    if given.get("verify", False) not in (False, 0) and not set(targets) <= set(REPEATABLE):
        raise ConfigError(
            f"compile has verify={given['verify']!r} and target={given['target']!r}; compared "
            f"code runs more than once, which only {', '.join(map(repr, REPEATABLE))} may. Use "
            "target='forward', or drop verify."
        )


def _parse_verify(verify: int | Mapping[str, Any]) -> VerifyConfig | None:
    given = dict(verify) if isinstance(verify, Mapping) else {"steps": verify}
    for key, value in given.items():
        if key not in _VERIFY_KEYS:
            raise ConfigError(f"compile.verify has no key {key!r}. {suggest(key, _VERIFY_KEYS)}")
        kinds = (int,) if key == "steps" else (int, float)
        # NaN would refuse everything.
        if value is not None and not (isinstance(value, kinds) and value >= 0):
            wanted = "a number of training calls" if key == "steps" else "a tolerance"
            raise ConfigError(f"compile.verify.{key} is {value!r}; it takes {wanted}, 0 or more.")
    steps = given.pop("steps", None)
    steps = 1 if steps is None else steps
    return VerifyConfig(steps=int(steps), **given) if steps else None
