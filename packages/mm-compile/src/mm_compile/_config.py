"""The compile config: parsed, checked, and checked against the installed torch."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ._cache._code_cache import CodeCache
from ._cache._directory import parse_directory
from ._errors import ConfigError
from ._torch import compile_keywords, require_compile, require_torch_2_4, takes_version_limit
from ._torch_private import backend_names, inductor_modes, inductor_options, version_limit
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
_OWN_KEYS = (*_CHOICES, "regions", "recompile_limit", "optimizer", "cache", "verify")
# Types of values, and their description. torch checks keywords that are missing here.
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
    "options": ((dict,), "a dict of options by their names"),
    "disable": ((bool, str), "True, False or 'auto'"),
    "verify": ((int, Mapping), "True, a number of training calls or a dict"),
    "verify.steps": ((int,), "a number of training calls, 0 or more"),
    "verify.rtol": ((int, float), "a tolerance, 0 or more"),
    "verify.atol": ((int, float), "a tolerance, 0 or more"),
}
_AUTO: Mapping[str, Any] = {"disable": "auto", "regions": "auto", "on_error": "eager"}
# Dynamo keeps 8 versions of a function by default: the first one, recompilations, and those of
# modules that only look alike.
_DEFAULT_RECOMPILE_LIMIT = 4
_VERSIONS_RESERVED = 4


@dataclass(frozen=True)
class VerifyConfig:
    """A checked ``verify``; a tolerance of None is the dtype's default."""

    steps: int
    rtol: float | None = None
    atol: float | None = None


@dataclass(frozen=True)
class CompileConfig:
    """A checked compile config; :func:`mm_compile.compile_model` describes its keys.

    ``regions`` is None for the whole model. ``code_cache`` is the open cache of a model that is
    being compiled, ``keywords`` are the arguments of ``torch.compile``, without ``disable``.
    """

    enabled: bool
    target: tuple[str, ...] = ("forward",)
    regions: str | tuple[str, ...] | None = None
    on_error: str = "raise"
    on_recompile: str = "dynamic"
    recompile_limit: int = _DEFAULT_RECOMPILE_LIMIT
    optimizer: bool = False
    cache: Path | None = None
    code_cache: CodeCache | None = field(default=None, compare=False)
    auto: bool = False
    verify: VerifyConfig | None = None
    keywords: dict[str, Any] = field(default_factory=dict)

    @property
    def num_versions(self) -> int:
        """Number of versions of one function that dynamo has to keep."""
        return self.recompile_limit + _VERSIONS_RESERVED


def parse_config(
    cfg: bool | str | Mapping[str, Any] | None,  # noqa: FBT001 - a config value
    keywords: Mapping[str, Any] = MappingProxyType({}),
) -> CompileConfig:
    """Parse ``cfg`` without changing it, and check what needs no compiler.

    ``keywords`` are further keys, which win; a config that is off stays off.
    """
    if cfg is None or cfg is False:
        return CompileConfig(enabled=False)
    if cfg is True:
        cfg = {}
    elif cfg == "auto":
        cfg = _AUTO
    elif not isinstance(cfg, Mapping):
        raise ConfigError(
            f"compile is {cfg!r}; it takes True, False, None, 'auto' or a dict of "
            "torch.compile's arguments. Write compile=True for the defaults."
        )
    merged = {**cfg, **keywords}
    known = tuple(dict.fromkeys((*_OWN_KEYS, *compile_keywords())))
    for key in merged:
        if key not in known:
            raise ConfigError(f"compile has no argument {key!r}. {suggest(key, known)}")
    given = {key: value for key, value in merged.items() if value is not None}
    for key, value in given.items():
        _check_type(key, value)
    target = given.get("target", "forward")
    # Names of the wrong type may not be hashable; they are refused as unknown names.
    names = [target] if isinstance(target, str) else map(str, target)
    given["target"] = tuple(dict.fromkeys(names))
    _check_values(given)
    _check_combinations(given)
    own = {key: given.pop(key) for key in _OWN_KEYS if key in given}
    cache = own.get("cache", False)
    own["cache"] = None if cache is False else parse_directory(cache, "compile.cache")
    if isinstance(own.get("regions"), (list, tuple)):
        own["regions"] = tuple(own["regions"])
    own["verify"] = _parse_verify(own.get("verify", 0))
    own["auto"] = given.get("disable") == "auto"
    enabled = given.pop("disable", False) in (False, "auto")
    if "options" in given:
        # torch.compile removes entries from the dict that it is given.
        given["options"] = dict(given["options"])
    return CompileConfig(enabled=enabled, keywords=given, **own)


def check_against_torch(config: CompileConfig) -> None:
    """Check what only the installed torch knows: backend, mode and options."""
    require_compile()
    limit = version_limit()
    if not takes_version_limit() and config.num_versions > limit:
        raise ConfigError(
            f"compile.recompile_limit is {config.recompile_limit}; dynamo keeps {limit} versions "
            f"of a function, which allows {limit - _VERSIONS_RESERVED}. Raise "
            "torch._dynamo.config.cache_size_limit too."
        )
    for key in ("optimizer", "cache", "verify"):
        if getattr(config, key):
            require_torch_2_4(key)
    backend = config.keywords.get("backend", "inductor")
    known = backend_names()
    if isinstance(backend, str) and backend != "inductor" and known is not None:
        _check_name("compile backend", backend, known)
    if backend == "inductor":  # others may have other modes
        _check_name("compile mode", config.keywords.get("mode", "default"), inductor_modes())
    options = inductor_options() if backend == "inductor" else None
    for option in config.keywords.get("options", ()):
        # torch accepts dashes for underscores.
        if options is not None and option.replace("-", "_") not in options:
            raise ConfigError(f"inductor has no option {option!r}. {suggest(option, options)}")


def _check_name(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ConfigError(f"{kind} {name!r} does not exist. {suggest(name, known)}")


def _check_type(key: str, value: Any, *, is_wrong: bool = False) -> None:
    types, wanted = _TYPES.get(key, ((object,), "anything"))
    if is_wrong or not isinstance(value, types):
        raise ConfigError(f"compile.{key} is {value!r}; it takes {wanted}.")


def _check_values(given: Mapping[str, Any]) -> None:
    for key, known in _CHOICES.items():
        chosen = given.get(key, ())
        for name in (chosen,) if isinstance(chosen, str) else chosen:
            _check_name(f"compile.{key}", name, known)
    regions, limit = given.get("regions", "auto"), given.get("recompile_limit", 0)
    is_list = not isinstance(regions, str) and regions and all(isinstance(e, str) for e in regions)
    disable = given.get("disable", False)
    problems = {
        "target": not given["target"],
        "regions": regions != "auto" and not is_list,
        "disable": isinstance(disable, str) and disable != "auto",
        "recompile_limit": isinstance(limit, bool) or limit < 0,
        "options": not all(isinstance(name, str) for name in given.get("options", ())),
    }
    for key in (key for key, is_wrong in problems.items() if is_wrong):
        _check_type(key, given[key], is_wrong=True)


def _check_combinations(given: Mapping[str, Any]) -> None:
    targets, is_auto = set(given["target"]), given.get("disable") == "auto"
    # An empty dict is a verify with its defaults.
    is_verified = given.get("verify", False) not in (False, 0)
    trained, repeatable = (", ".join(map(repr, names)) for names in (TRAINED, REPEATABLE))
    problems = {
        ("regions", "target"): (
            "regions" in given and targets != {"forward"},
            "regions are modules whose forward is compiled. Drop one.",
        ),
        ("mode", "options"): (
            "mode" in given and "options" in given,
            "torch.compile takes one of them. Write the mode's options out, or drop one.",
        ),
        ("disable", "target"): (
            is_auto and (len(targets) != 1 or not targets <= set(TRAINED)),
            f"'auto' weighs one method that trains: {trained}. Name one.",
        ),
        ("disable", "optimizer"): (
            is_auto and given.get("optimizer", False),
            "'auto' weighs the model alone. Drop one of the two.",
        ),
        ("verify", "target"): (
            is_verified and not targets <= set(REPEATABLE),
            f"compared code runs twice, which only {repeatable} may.",
        ),
    }
    for keys, (is_wrong, reason) in problems.items():
        if is_wrong:
            values = " and ".join(f"{key}={given[key]!r}" for key in keys)
            raise ConfigError(f"compile has {values}; {reason}")


def _parse_verify(verify: int | Mapping[str, Any]) -> VerifyConfig | None:
    given = dict(verify) if isinstance(verify, Mapping) else {"steps": verify}
    known = ("steps", "rtol", "atol")
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"compile.verify has no key {key!r}. {suggest(key, known)}")
        if value is not None:
            _check_type(f"verify.{key}", value)
            # NaN would refuse everything.
            _check_type(f"verify.{key}", value, is_wrong=not value >= 0)
    steps = given.pop("steps", None)
    steps = 1 if steps is None else steps
    return VerifyConfig(steps=int(steps), **given) if steps else None
