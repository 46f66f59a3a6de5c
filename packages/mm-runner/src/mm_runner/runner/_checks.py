"""Check a run's configuration before anything is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mm_runner import config
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import RUNNERS, need_mapping, short_repr
from mm_runner.validation import validate_run

# Keys that the Runner reads from its ``cfg`` besides its own arguments.
CFG_KEYS = (
    "activation_checkpointing",
    "channels_last",
    "compile",
    "crash_bundle",
    "device_prefetch",
    "find_unused_parameters",
    "log_writers",
    "loss",
    "model_wrapper_cfg",
    "sync_bn",
)

# Where arguments of one level down, or of other trainers, belong.
HOMES = {
    **{name: f"train_cfg.{name}" for name in ("max_epochs", "max_iters", "val_interval")},
    **{name: f"train_dataloader.{name}" for name in ("batch_size", "num_workers")},
    **{name: f"optim_wrapper.{name}" for name in ("optimizer", "clip_grad", "accumulative_counts")},
    **{name: f"optim_wrapper.optimizer.{name}" for name in ("lr", "momentum", "weight_decay")},
    **dict.fromkeys(("precision", "mixed_precision"), "optim_wrapper.dtype"),
    "gradient_clip_val": "optim_wrapper.clip_grad.max_norm",
    "seed": "randomness.seed",
    "deterministic": "randomness.deterministic",
}

# Similarity from which an unknown key counts as a misspelling: compiler and compile are above it,
# data_root and data_preprocessor (0.62), custom_imports and custom_hooks (0.69) are not.
_SLIP = 0.8

# Keys of OpenMMLab configs that other programs read, some of them similar to ours.
_OTHERS_KEYS = (
    *("conv_cfg", "tta_cfg", "tta_model", "tta_pipeline"),
    *("custom_imports", "runner_type", "strategy"),
)


def check_run(
    arguments: Mapping[str, Any], cfg: Any, runner: Callable[..., Any]
) -> dict[str, dict[str, Any]]:
    """Check the arguments of a Runner and its ``cfg`` before anything is built.

    Returns:
        The arguments of training, validation and test; an empty dict for a phase without any.

    Raises:
        ConfigError: If something does not fit; the message begins with the path of the key.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    checked = checked_cfg(cfg, runner)
    phases = {}
    for phase, last in (("train", "optim_wrapper"), ("val", None), ("test", None)):
        loop = f"{phase}_cfg"
        names = (f"{phase}_dataloader", loop, last or f"{phase}_evaluator")
        given = [name for name in names if arguments.get(name) is not None]
        missing = [name for name in names if name not in given]
        if phase != "train":  # its loop has defaults; configs that inherit it alone want none
            missing = [name for name in missing if name != loop]
            given = [] if given == [loop] else given
        if given and missing:
            raise ConfigError(
                f"{' and '.join(given)} {'was' if len(given) == 1 else 'were'} given without "
                f"{' and '.join(missing)}; {', '.join(names)} belong together: give all or none."
            )
        phases[phase] = {name: arguments[name] for name in given}
        if given:
            phases[phase].setdefault(loop, {})
    if arguments.get("param_scheduler") is not None and not phases["train"]:
        raise ConfigError("param_scheduler was given without optim_wrapper; give both, or neither.")
    validate_run(arguments, checked, runner)
    return phases


def run_arguments(cfg: Mapping[str, Any], runner: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a Runner in a full configuration, and check its keys."""
    checked_cfg(cfg, runner)
    for name in ("model", "work_dir"):
        if name not in cfg:
            given = ", ".join(map(str, cfg)) or "none"
            raise ConfigError(f"cfg.{name}: this key is missing; given: {given}.")
    return {name: cfg[name] for name in argument_names(runner) if name in cfg}


def argument_names(runner: Callable[..., Any]) -> tuple[str, ...]:
    """List the arguments of the Runner's constructor that a full configuration may hold."""
    return tuple(name for name in inspect.signature(runner).parameters if name != "cfg")


def unknown_keys(cfg: Iterable[str], runner: Callable[..., Any]) -> list[str]:
    """List the keys of a full configuration that the Runner does not know."""
    known = {*CFG_KEYS, *argument_names(runner), *_OTHERS_KEYS}
    return [str(key) for key in cfg if key not in known]


def checked_cfg(cfg: Any, runner: Callable[..., Any]) -> dict[str, Any]:
    """Return a full configuration as a dict, its top-level keys checked; ``None`` is an empty one.

    A key similar to a known one is an error, and one that belongs a level down; other unknown keys
    are kept.

    Raises:
        ConfigError: If it is no mapping, or naming the key that is wrong.
    """
    cfg = need_mapping({} if cfg is None else cfg, "cfg")
    known = {*CFG_KEYS, *argument_names(runner)}
    for key, value in cfg.items():
        # MMEngine's FlexibleRunner shards or offloads by these: ignoring them would change a run.
        name = str(getattr(value, "__name__", value)).rpartition(".")[2]
        if value and (key == "strategy" or (key == "runner_type" and name not in RUNNERS)):
            raise ConfigError(
                f"cfg.{key}: {short_repr(value)} was given; there are the runners "
                f"{', '.join(RUNNERS.names())}, without strategies. To shard the model, give "
                "model_wrapper_cfg=dict(type='MMFullyShardedDataParallel'); for mixed precision, "
                "optim_wrapper=dict(type='AmpOptimWrapper', ...). Remove the key to continue."
            )
        if key in known or key in _OTHERS_KEYS:
            continue
        # Configs define variables, such as data_root: only a misspelling is an error.
        hint = did_you_mean(str(key), known, cutoff=_SLIP)
        if hint and not (isinstance(cfg, config.Config) and cfg.reads(key)):
            raise ConfigError(
                f"cfg.{key}: unknown key.{hint} Keys of your own need names unlike these."
            )
        home = HOMES.get(key)
        if home is not None and value is not None and not _is_variable(cfg, str(key), home):
            raise ConfigError(
                f"{key}: {short_repr(value)} sets nothing here; it belongs to {home}. Set it "
                "there; a variable of your own needs another name."
            )
    return dict(cfg)


def _is_variable(cfg: Mapping[str, Any], key: str, home: str) -> bool:
    """Return whether a key may be a variable: of a Python file, a YAML anchor, or by its value."""
    if isinstance(cfg, config.Config) and (str(cfg.filename).endswith(".py") or cfg.reads(key)):
        return True
    found: Any = cfg
    for name in home.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return bool(found == cfg[key])
