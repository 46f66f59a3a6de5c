"""Check the whole configuration of a run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

import mm_compile
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.evaluator import Evaluator, evaluator_type, is_torch_metric, refuse_evaluator
from mm_runner.hooks import Hook
from mm_runner.hooks._hook_list import _DEFAULT_HOOKS as DEFAULT_HOOK_NAMES
from mm_runner.loops import IterBasedTrainLoop
from mm_runner.model import check_module_settings
from mm_runner.registry import (
    HOOKS,
    LOG_WRITERS,
    LOOPS,
    METRICS,
    MODELS,
    check_type,
)
from mm_runner.reporting import build_log_processor, writer_configs

from ._components import check_component, check_flag, check_integer, check_known, need_mapping
from ._data import check_dataloader
from ._environment import check_environment, check_launcher, check_randomness
from ._optim import check_optim_wrapper, check_schedules
from ._wrapper import check_model_wrapper

__all__ = ["validate_run"]

# What is True or False in the full configuration.
_FLAGS = (
    "channels_last",
    "crash_bundle",
    "device_prefetch",
    "find_unused_parameters",
    "resume_data",
)


def validate_run(
    arguments: Mapping[str, Any], cfg: Mapping[str, Any], runner: Callable[..., Any]
) -> None:
    """Check the configuration of a run.

    Args:
        arguments: Of the Runner's constructor, by name.
        cfg: What the Runner reads besides: ``compile``, ``model_wrapper_cfg`` and so on.
        runner: The Runner's class, whose annotations count.

    Raises:
        ConfigError: If a key is unknown, missing or of another type, or a value is refused by what
            it is for; the message begins with its path.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    parameters = inspect.signature(runner).parameters
    for name, value in given.items():
        if name in _SECTIONS:
            _SECTIONS[name](value, name)
        else:
            check_type(runner, parameters[name], value, name)
    env = given.get("env_cfg", {})
    device_type = (env.get("dist_cfg") or {}).get("device_type")
    optimizers = check_optim_wrapper(given.get("optim_wrapper"), "optim_wrapper", device_type)
    num_epochs = given.get("train_cfg", {}).get("max_epochs")
    check_schedules(given.get("param_scheduler"), "param_scheduler", num_epochs, optimizers)
    _check_log_counts(given.get("train_cfg", {}), given.get("log_processor"))
    _check_cfg(cfg)


def _check_model(model: Any, where: str) -> None:
    if not isinstance(model, nn.Module):
        need_mapping(model, where, "an nn.Module or a dict with 'type'")
        check_component(model, MODELS, where)


def _check_preprocessor(value: Any, where: str) -> None:
    # Without a type it is the model's to complete, or that of BaseDataPreprocessor.
    if not isinstance(value, nn.Module) and "type" in need_mapping(value, where):
        check_component(value, MODELS, where)


def _check_train_loop(cfg: Any, where: str) -> None:
    need_mapping(cfg, where)
    check_flag(cfg, "by_epoch", where)
    plain = {key: value for key, value in cfg.items() if key != "by_epoch"}
    by_epoch = cfg.get("by_epoch", True)
    default = "EpochBasedTrainLoop" if by_epoch is not False else "IterBasedTrainLoop"
    if cfg.get("type") is not None and by_epoch is not None and "by_epoch" in cfg:
        raise ConfigError(f"{where}: 'type' and 'by_epoch' were both given; give one of them.")
    check_component(plain, LOOPS, where, default=default, given=("runner", "dataloader"))


def _check_eval_loop(cfg: Any, where: str) -> None:
    need_mapping(cfg, where)
    default = "ValLoop" if where.startswith("val") else "TestLoop"
    given = ("runner", "dataloader", "evaluator")
    check_component(cfg, LOOPS, where, default=default, given=given)


def _check_evaluator(value: Any, where: str) -> None:
    kind = evaluator_type(value)
    if kind is not None:
        check_component({**value, "type": kind}, METRICS, where)
    if kind is Evaluator:
        _check_metrics(value["metrics"], f"{where}.metrics")
    elif kind is None and not isinstance(value, Evaluator):
        _check_metrics(value, where)


def _check_metrics(value: Any, where: str) -> None:
    is_list = isinstance(value, (list, tuple))
    for index, metric in enumerate(value if is_list else [value]):
        place = f"{where}[{index}]" if is_list else where
        refuse_evaluator(metric, place)
        if isinstance(metric, Mapping):
            check_component(metric, METRICS, place)
        elif not (hasattr(metric, "process") or is_torch_metric(metric)):
            raise ConfigError(
                f"{place}: a metric, or a dict with the key 'type', is needed, got {metric!r}."
            )


def _check_default_hooks(hooks: Any, where: str) -> None:
    for name, hook in need_mapping(hooks, where).items():
        hint = did_you_mean(str(name), DEFAULT_HOOK_NAMES, cutoff=0.8)
        if name not in DEFAULT_HOOK_NAMES and hint:  # others are the user's own
            raise ConfigError(f"{where}.{name}: unknown key.{hint}")
        if hook is not None and not (isinstance(hook, Mapping) and "type" not in hook):
            _check_hook(hook, f"{where}.{name}")


def _check_custom_hooks(hooks: Any, where: str) -> None:
    if not isinstance(hooks, (list, tuple)):
        raise ConfigError(f"{where}: a list of hooks or their configs is needed, got {hooks!r}.")
    for index, hook in enumerate(hooks):
        _check_hook(hook, f"{where}[{index}]")


def _check_hook(hook: Any, where: str) -> None:
    if not isinstance(hook, Hook):
        need_mapping(hook, where, "a mm_runner.hooks.Hook or a dict with 'type'")
        plain = {key: value for key, value in hook.items() if key != "priority"}
        check_component(plain, HOOKS, where)


def _check_auto_scale(cfg: Any, where: str) -> None:
    check_known(cfg, where, ("base_batch_size", "enable"))
    check_flag(cfg, "enable", where)
    check_integer(cfg, "base_batch_size", where, least=1)
    if cfg.get("enable") and cfg.get("base_batch_size") is None:
        raise ConfigError(
            f"{where}.base_batch_size: a positive integer is needed, got None; it is the batch "
            "size that the learning rate was chosen for."
        )


def _check_log_level(level: Any, where: str) -> None:
    names = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    number = logging.getLevelName(level) if isinstance(level, str) else level
    if not isinstance(number, int) or isinstance(number, bool):
        hint = did_you_mean(str(level), names)
        raise ConfigError(f"{where}: {level!r} was given; there are {', '.join(names)}.{hint}")


def _check_log_processor(value: Any, where: str) -> None:  # noqa: ARG001 - it names the path
    build_log_processor(value)


def _check_log_counts(train_cfg: Any, log_processor: Any) -> None:
    """Check that nothing is to be logged of an epoch in a training that counts steps."""
    counts_steps = train_cfg.get("by_epoch") is False or train_cfg.get("type") in (
        "IterBasedTrainLoop",
        IterBasedTrainLoop,
    )
    if counts_steps and log_processor is not None:
        build_log_processor(log_processor).check_counts_epochs()


def _check_visualizer(value: Any, where: str) -> None:  # noqa: ARG001 - the paths are its own
    _check_writers(value, None)


def _check_writers(visualizer: Any, log_writers: Any) -> None:
    for place, writer in writer_configs(visualizer, log_writers).items():
        if isinstance(writer, Mapping):
            check_component(writer, LOG_WRITERS, place, given=("log_dir",))


_SECTIONS: dict[str, Callable[[Any, str], None]] = {
    "model": _check_model,
    "data_preprocessor": _check_preprocessor,
    "train_cfg": _check_train_loop,
    "val_cfg": _check_eval_loop,
    "test_cfg": _check_eval_loop,
    "train_dataloader": check_dataloader,
    "val_dataloader": check_dataloader,
    "test_dataloader": check_dataloader,
    "val_evaluator": _check_evaluator,
    "test_evaluator": _check_evaluator,
    "default_hooks": _check_default_hooks,
    "custom_hooks": _check_custom_hooks,
    "auto_scale_lr": _check_auto_scale,
    "launcher": check_launcher,
    "randomness": check_randomness,
    "env_cfg": check_environment,
    "log_level": _check_log_level,
    "log_processor": _check_log_processor,
    "visualizer": _check_visualizer,
}


def _check_cfg(cfg: Mapping[str, Any]) -> None:
    """Check what the Runner reads from the full configuration only."""
    if cfg.get("model_wrapper_cfg") is not None:
        check_model_wrapper(cfg["model_wrapper_cfg"], "model_wrapper_cfg")
    _check_writers(None, cfg.get("log_writers"))
    check_module_settings(cfg)
    for name in _FLAGS:
        check_flag(cfg, name)
    if cfg.get("on_world_size_change") not in (None, "keep", "error"):
        raise ConfigError(
            "on_world_size_change: 'keep' or 'error' is needed, got "
            f"{cfg['on_world_size_change']!r}; it is for a resumed run of another number of "
            "processes."
        )
    if cfg.get("sync_bn") not in (None, "torch"):
        raise ConfigError(
            f"sync_bn: 'torch' or None is needed, got {cfg['sync_bn']!r}; torch's own is the only "
            "batch normalisation over processes there is here."
        )
    compiled = cfg.get("compile")
    if isinstance(compiled, Mapping) and compiled.get("cache") is True:
        compiled = {**compiled, "cache": "compile_cache"}  # beside the work directory, later
    mm_compile.can_compile(compiled)  # its messages begin with the path as well
