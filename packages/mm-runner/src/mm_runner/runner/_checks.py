"""Checks of a run's configuration, before anything is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mm_runner.config import Config
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import short_repr
from mm_runner.validation import validate_run

__all__ = [
    "HOMES",
    "argument_names",
    "check_run",
    "checked_cfg",
    "checked_phases",
    "need_keys",
    "own_keys",
    "refuse_misplaced",
    "unknown_keys",
    "without_variables",
]

# Keys that the Runner reads from its ``cfg`` besides its own arguments.
CFG_KEYS = (
    "activation_checkpointing",
    "channels_last",
    "compile",
    "crash_bundle",
    "device_prefetch",
    "find_unused_parameters",
    "log_writers",
    "model_wrapper_cfg",
    "sync_bn",
)

# Arguments one level down, or other trainers' names of them, and where they belong.
HOMES = {
    **dict.fromkeys(("max_epochs", "num_epochs", "epochs"), "train_cfg.max_epochs"),
    **dict.fromkeys(("max_iters", "max_steps"), "train_cfg.max_iters"),
    **{name: f"train_cfg.{name}" for name in ("val_begin", "val_interval", "dynamic_intervals")},
    **{name: f"train_dataloader.{name}" for name in ("batch_size", "num_workers", "drop_last")},
    **{name: f"optim_wrapper.{name}" for name in ("optimizer", "clip_grad", "loss_scale")},
    **{name: f"optim_wrapper.{name}" for name in ("accumulative_counts", "paramwise_cfg")},
    **{name: f"optim_wrapper.optimizer.{name}" for name in ("lr", "momentum", "weight_decay")},
    "learning_rate": "optim_wrapper.optimizer.lr",
    "accumulate_grad_batches": "optim_wrapper.accumulative_counts",
    "gradient_accumulation_steps": "optim_wrapper.accumulative_counts",
    "gradient_clip_val": "optim_wrapper.clip_grad.max_norm",
    **dict.fromkeys(("precision", "mixed_precision"), "optim_wrapper.dtype"),
    **{name: f"randomness.{name}" for name in ("seed", "deterministic", "diff_rank_seed")},
    **{name: f"env_cfg.{name}" for name in ("cudnn_benchmark", "mp_cfg", "dist_cfg")},
    **{name: f"default_hooks.checkpoint.{name}" for name in ("save_best", "max_keep_ckpts")},
    "base_batch_size": "auto_scale_lr.base_batch_size",
}
_LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader")

_OBJECT = object()

# How alike a key must be to a known one to be taken for it: compiler and compile are, data_root and
# data_preprocessor (0.62), custom_imports and custom_hooks (0.69) are not.
_SLIP = 0.8

# Keys of MMEngine's family that are for other programs or the file's own use, and look like ours.
_OTHERS_KEYS = ("conv_cfg", "tta_cfg", "tta_model", "tta_pipeline")


def check_run(cfg: Mapping[str, Any], runner: Callable[..., Any]) -> None:
    """Check a full configuration as the Runner does before it builds anything.

    Raises:
        ConfigError: If it does not fit; the message begins with the path of the key.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    names = argument_names(runner)
    checked_cfg(cfg, names)
    need_keys(cfg, names)
    checked_phases(cfg, unknown_keys(cfg, names))
    refuse_misplaced(cfg, cfg)
    validate_run({name: cfg[name] for name in names if name in cfg}, cfg, runner)


def refuse_misplaced(arguments: Mapping[str, Any], cfg: Any) -> None:
    """Refuse top-level keys that are named like an argument one level down, and set nothing.

    A variable of a configuration's own may have such a name: one whose value stands where it
    belongs too, or that a file uses, or beside which its own file, or one above, sets the argument.

    Raises:
        ConfigError: Naming the key, and where it belongs.
    """
    for key, home in HOMES.items():
        if cfg is None or cfg.get(key) is None:
            continue
        section, *_, name = home.split(".")
        sections = _LOADERS if section in _LOADERS else [section]
        found = [one for part in sections for one in _values(arguments.get(part), name)]
        if any(one is _OBJECT or repr(one) == repr(cfg[key]) for one in found):
            continue
        if found and not (isinstance(cfg, Config) and cfg.sets_in_vain(key, home)):
            continue
        if isinstance(cfg, Config) and not found and cfg.reads(key):
            continue
        there = f", which is {short_repr(found[0])}" if found else ""
        raise ConfigError(
            f"{key}: {short_repr(cfg[key])} sets nothing here; it belongs to {home}{there}. "
            "Set it there; a variable of your own needs another name."
        )


def without_variables(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked configuration without the variables that are named like arguments.

    Written to a file, or changed, it would no longer show that they are variables.
    """
    return {key: value for key, value in cfg.items() if key not in HOMES}


def _values(holder: Any, name: str) -> Iterator[Any]:
    """Yield the values of ``name`` at any depth, and ``_OBJECT`` for objects that may have it."""
    if isinstance(holder, Mapping):
        if name in holder:
            yield holder[name]
        for key, value in holder.items():
            if key not in ("type", "dataset"):
                yield from _values(value, name)
    elif isinstance(holder, (list, tuple)):
        for one in holder:
            yield from _values(one, name)
    elif not isinstance(holder, (str, int, float, type(None))):
        yield _OBJECT


def own_keys(cfg: Mapping[str, Any], runner_arguments: Iterable[str]) -> list[str]:
    """List the keys of a full configuration that nothing uses: neither the Runner nor a file."""
    reads = cfg.reads if isinstance(cfg, Config) else lambda _: False
    unknown = unknown_keys(cfg, (*runner_arguments, "custom_imports"))
    return [key for key in unknown if not reads(key)]


def argument_names(runner: Callable[..., Any]) -> tuple[str, ...]:
    """List the arguments of the Runner's constructor that a full configuration may hold."""
    return tuple(name for name in inspect.signature(runner).parameters if name != "cfg")


def unknown_keys(cfg: Mapping[str, Any], runner_arguments: Iterable[str]) -> list[str]:
    """List the keys of a full configuration that mean nothing to the Runner."""
    known = {*CFG_KEYS, *runner_arguments, "runner_type", "strategy", *_OTHERS_KEYS}
    return [str(key) for key in cfg if key not in known]


def need_keys(cfg: Mapping[str, Any], runner_arguments: Iterable[str]) -> None:
    """Check that a full configuration has the keys that every run needs.

    Raises:
        ConfigError: If one is missing.
    """
    for name in ("model", "work_dir"):
        if name not in cfg:
            given = ", ".join(map(str, cfg)) or "none"
            hint = _may_be_meant(name, unknown_keys(cfg, runner_arguments))
            raise ConfigError(f"cfg.{name}: this key is missing; given: {given}.{hint}")


def checked_phases(
    arguments: Mapping[str, Any], unknown: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the arguments of training, validation and test; an empty dict if none was given.

    Raises:
        ConfigError: If some of a phase are given and others are not.
    """
    phases = {}
    for phase, last in (("train", "optim_wrapper"), ("val", None), ("test", None)):
        names = (f"{phase}_dataloader", f"{phase}_cfg", last or f"{phase}_evaluator")
        given = [name for name in names if arguments.get(name) is not None]
        missing = [name for name in names if name not in given]
        if given and missing:
            raise ConfigError(
                f"{' and '.join(given)} {'was' if len(given) == 1 else 'were'} given without "
                f"{' and '.join(missing)}; {', '.join(names)} belong together: give all or none."
                f"{''.join(_may_be_meant(name, unknown) for name in missing)}"
            )
        phases[phase] = {name: arguments[name] for name in given}
    return phases


def _may_be_meant(name: str, given: Sequence[str]) -> str:
    """Return a hint at a given key that is near the missing ``name``, or ``""``."""
    near = [key for key in given if did_you_mean(key, [name])]
    return f" There is {near[0]!r}: did you mean {name!r}?" if near else ""


def checked_cfg(cfg: Any, runner_arguments: tuple[str, ...]) -> dict[str, Any]:
    """Return a full configuration as a dict, its top-level keys checked; ``None`` is an empty one.

    A key close to a known one is a slip; other unknown keys are kept.

    Raises:
        ConfigError: If it is no mapping, or naming the key that is wrong.
    """
    if cfg is None:
        return {}
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"cfg: a dict is needed, got {cfg!r}.")
    known = {*CFG_KEYS, *runner_arguments}
    for key, value in cfg.items():
        # MMEngine's FlexibleRunner shards or offloads by these: silence would change a run.
        name = str(getattr(value, "__name__", value)).rpartition(".")[2]
        if value and (key == "strategy" or (key == "runner_type" and name != "Runner")):
            raise ConfigError(
                f"cfg.{key}: {short_repr(value)} was given; there is no Runner but "
                "mm_runner.Runner, and it has no strategies. To shard the model, give "
                "model_wrapper_cfg=dict(type='MMFullyShardedDataParallel'); for mixed precision, "
                "optim_wrapper=dict(type='AmpOptimWrapper', ...). Remove the key to continue."
            )
        if key in known or key in _OTHERS_KEYS:
            continue
        # Configs define variables, such as data_root: only a slip counts.
        hint = did_you_mean(str(key), known, cutoff=_SLIP)
        if hint:
            raise ConfigError(
                f"cfg.{key}: unknown key.{hint} Keys of your own need names unlike these."
            )
    return dict(cfg)
