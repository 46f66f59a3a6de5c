"""Check the whole configuration of a run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import mm_dist
from mm_runner.data._datasets import check_dataset
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.evaluator import Evaluator, evaluator_type, is_torch_metric, refuse_evaluator
from mm_runner.hooks import Hook
from mm_runner.hooks._hook_list import DEFAULT_HOOKS
from mm_runner.model import check_module_settings
from mm_runner.registry import (
    DATA_SAMPLERS,
    DATASETS,
    FUNCTIONS,
    HOOKS,
    LOG_WRITERS,
    LOOPS,
    METRICS,
    MODEL_WRAPPERS,
    MODELS,
    build_from_cfg,
    check_arguments,
    check_cfg,
    check_type,
    describe_annotation,
    fits,
    short_repr,
)
from mm_runner.reporting import build_log_processor, writer_configs

from ._components import check_component, check_positive, check_section, need_mapping
from ._environment import check_environment, check_launcher, check_randomness
from ._optim import check_optim_wrapper, check_schedules

__all__ = ["check_auto_scale", "check_train_loop", "validate_run"]

# Settings that the Runner reads from the full configuration only.
_SETTINGS = {
    **dict.fromkeys(("channels_last", "crash_bundle", "device_prefetch"), bool),
    "find_unused_parameters": bool,
    "sync_bn": Literal["torch"],
}
# Keys of a dataloader besides the arguments of torch's DataLoader, and those checked apart.
_CHECKED_APART = (
    *("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn"),
    *("num_batch_per_epoch", "disable_subprocess_warning"),
)
# These pass unknown arguments on to torch's wrapper.
_DDP_WRAPPERS = (mm_dist.MMDistributedDataParallel, mm_dist.MMSeparateDistributedDataParallel)
# Names of one argument in different versions of torch; each is accepted by every version.
_RENAMED = ("broadcast_buffers", "forward_sync_buffers")


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
    check_optim_wrapper(given.get("optim_wrapper"), "optim_wrapper", device_type)
    num_epochs = given.get("train_cfg", {}).get("max_epochs")
    check_schedules(given.get("param_scheduler"), "param_scheduler", num_epochs)
    for place, writer in writer_configs(given.get("visualizer"), cfg.get("log_writers")).items():
        if isinstance(writer, Mapping):
            check_component(writer, LOG_WRITERS, place, given=("log_dir",))
    _check_cfg(cfg)


def _check_model(model: Any, where: str) -> None:
    # A preprocessor without a type is the model's to complete, or BaseDataPreprocessor's.
    if isinstance(model, nn.Module):
        return
    need_mapping(model, where, "an nn.Module or a dict with 'type'")
    if where == "model" or "type" in model:
        check_component(model, MODELS, where)


def check_train_loop(cfg: Any, where: str) -> None:
    """Check ``train_cfg``."""
    by_epoch = need_mapping(cfg, where).get("by_epoch")
    if not isinstance(by_epoch, (bool, type(None))):
        raise ConfigError(f"{where}.by_epoch: True or False is needed, got {by_epoch!r}.")
    if cfg.get("type") is not None and by_epoch is not None:
        raise ConfigError(f"{where}: 'type' and 'by_epoch' were both given; give one of them.")
    plain = {key: value for key, value in cfg.items() if key != "by_epoch"}
    default = "IterBasedTrainLoop" if by_epoch is False else "EpochBasedTrainLoop"
    check_component(plain, LOOPS, where, default=default, given=("runner", "dataloader"))


def _check_eval_loop(cfg: Any, where: str) -> None:
    default = "ValLoop" if where.startswith("val") else "TestLoop"
    given = ("runner", "dataloader", "evaluator")
    check_component(need_mapping(cfg, where), LOOPS, where, default=default, given=given)


def _check_dataloader(cfg: Any, where: str) -> None:
    """Check the config of a dataloader; a ready one is taken as it is."""
    if isinstance(cfg, DataLoader):
        return
    need_mapping(cfg, where, "a DataLoader or a dict")
    plain = {key: value for key, value in cfg.items() if key not in _CHECKED_APART}
    check_arguments(DataLoader, plain, where, is_partial=True)
    given = ", ".join(map(repr, cfg)) or "none"
    if "dataset" not in cfg:
        raise ConfigError(
            f"{where}.dataset: this key is missing; given: {given}. It is a dataset, or a dict "
            "with its 'type' and arguments."
        )
    if cfg.get("batch_sampler") is None and cfg.get("batch_size") is None:
        raise ConfigError(
            f"{where}.batch_size: this key is missing; given: {given}. It is the number of samples "
            "per process and step."
        )
    check_positive(cfg, "batch_size", where)
    check_positive(cfg, "num_batch_per_epoch", where)
    if isinstance(cfg["dataset"], Mapping):
        check_component(cfg["dataset"], DATASETS, f"{where}.dataset")
    else:
        check_dataset(cfg["dataset"], f"{where}.dataset")
    _check_sampling(cfg, where)


def _check_sampling(cfg: Mapping[str, Any], where: str) -> None:
    samplers = {"sampler": ("dataset", "seed"), "batch_sampler": ("sampler", "batch_size")}
    for name, arguments in samplers.items():
        sampler: Any = cfg.get(name)
        is_list = isinstance(sampler, (list, tuple))
        if isinstance(sampler, Mapping):
            check_component(sampler, DATA_SAMPLERS, f"{where}.{name}", given=arguments)
        elif isinstance(sampler, (bool, int, float, str)) or (
            is_list and any(isinstance(one, Mapping) for one in sampler)
        ):
            raise ConfigError(
                f"{where}.{name}: a sampler or a dict with 'type' is needed, got "
                f"{short_repr(sampler)}."
            )
    for name in ("collate_fn", "worker_init_fn"):
        function = cfg.get(name)
        function = {"type": function} if isinstance(function, str) else function
        if isinstance(function, Mapping):
            # It is called with a batch or a worker's number later: what is missing now comes then.
            check_cfg(function, FUNCTIONS, where=f"{where}.{name}", is_partial=True)
        elif function is not None and not callable(function):
            raise ConfigError(
                f"{where}.{name}: a name ({', '.join(FUNCTIONS.names())}), a dict with 'type' or a "
                f"function is needed, got {function!r}."
            )


def _check_model_wrapper(cfg: Any, where: str) -> None:
    """Check ``model_wrapper_cfg``, in a run of one process too."""
    need_mapping(cfg, where)
    component: Any = check_component(
        cfg, MODEL_WRAPPERS, where, default="MMDistributedDataParallel", given=("module",)
    )
    # A user's class may accept anything as **kwargs.
    if component.__init__ not in [one.__init__ for one in _DDP_WRAPPERS]:
        return
    takers = (*_DDP_WRAPPERS[:1], component, DistributedDataParallel)
    known = [name for one in takers for name in inspect.signature(one).parameters]
    known = [name for name in dict.fromkeys((*known, *_RENAMED)) if name != "module"]
    check_section(cfg, where, dict.fromkeys(("type", *known), Any))


def _check_evaluator(value: Any, where: str) -> None:
    kind = evaluator_type(value)
    if kind is not None:
        check_component({**value, "type": kind}, METRICS, where)
        if kind is not Evaluator:
            return
        value, where = value["metrics"], f"{where}.metrics"
    elif isinstance(value, Evaluator):
        return
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
        hint = did_you_mean(str(name), DEFAULT_HOOKS, cutoff=0.8)
        if name not in DEFAULT_HOOKS and hint:  # other names are custom hooks
            raise ConfigError(f"{where}.{name}: unknown key.{hint}")
        if hook is not None and not (isinstance(hook, Mapping) and "type" not in hook):
            _check_hook(hook, f"{where}.{name}")


def _check_custom_hooks(hooks: Any, where: str) -> None:
    if not isinstance(hooks, (list, tuple)):
        raise ConfigError(f"{where}: a list of hooks or their configs is needed, got {hooks!r}.")
    for index, hook in enumerate(hooks):
        _check_hook(hook, f"{where}[{index}]")


def _check_hook(hook: Any, where: str) -> None:
    if isinstance(hook, Hook):
        return
    need_mapping(hook, where, "a mm_runner.hooks.Hook or a dict with 'type'")
    plain = {key: value for key, value in hook.items() if key != "priority"}
    component = check_component(plain, HOOKS, where)
    if component.__module__.startswith("mm_runner."):  # its constructor checks the values
        try:
            build_from_cfg(plain, HOOKS, where=where)
        except ConfigError as error:
            raise ConfigError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from error


def check_auto_scale(cfg: Any, where: str) -> None:
    """Check ``auto_scale_lr``."""
    check_section(cfg, where, {"base_batch_size": Any, "enable": bool})
    check_positive(cfg, "base_batch_size", where)
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


def _check_cfg(cfg: Mapping[str, Any]) -> None:
    """Check what the Runner reads from the full configuration only."""
    if cfg.get("model_wrapper_cfg") is not None:
        _check_model_wrapper(cfg["model_wrapper_cfg"], "model_wrapper_cfg")
    check_module_settings(cfg)
    for name, annotation in _SETTINGS.items():
        if cfg.get(name) is not None and not fits(cfg[name], annotation):
            wanted = describe_annotation(annotation)
            raise ConfigError(f"{name}: {wanted} is needed, got {short_repr(cfg[name])}.")
    compiled = cfg.get("compile")
    if compiled is None or compiled is False:
        return
    import mm_compile  # noqa: PLC0415 - many runs compile nothing

    if isinstance(compiled, Mapping) and compiled.get("cache") is True:
        compiled = {**compiled, "cache": "compile_cache"}  # beside the work directory, later
    mm_compile.can_compile(compiled)  # its messages begin with the path as well


_SECTIONS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("model", "data_preprocessor"), _check_model),
    "train_cfg": check_train_loop,
    **dict.fromkeys(("val_cfg", "test_cfg"), _check_eval_loop),
    **{f"{phase}_dataloader": _check_dataloader for phase in ("train", "val", "test")},
    **dict.fromkeys(("val_evaluator", "test_evaluator"), _check_evaluator),
    "default_hooks": _check_default_hooks,
    "custom_hooks": _check_custom_hooks,
    "auto_scale_lr": check_auto_scale,
    "launcher": check_launcher,
    "randomness": check_randomness,
    "env_cfg": check_environment,
    "log_level": _check_log_level,
    "log_processor": lambda value, _: build_log_processor(value),
    "visualizer": lambda value, _: writer_configs(value, None),
}
