"""Check the sections of a configuration, without building them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import mm_dist
from mm_runner.data import check_dataset
from mm_runner.errors import ConfigError
from mm_runner.evaluator import Evaluator, evaluator_type, is_torch_metric
from mm_runner.registry import (
    DATA_SAMPLERS,
    DATASETS,
    FUNCTIONS,
    LOG_WRITERS,
    LOOPS,
    METRICS,
    MODEL_WRAPPERS,
    MODELS,
    check_arguments,
    check_cfg,
    check_integer,
    check_section,
    check_type,
    need_mapping,
    need_names,
)
from mm_runner.reporting import build_log_processor, writer_configs

from ._optim import check_component, check_optim_wrapper, check_schedules

# Settings that the Runner reads from the full configuration only.
_SETTINGS = {
    **dict.fromkeys(("channels_last", "crash_bundle", "device_prefetch"), bool),
    "find_unused_parameters": bool,
    "sync_bn": Literal["torch"],
}
_ENV = {
    "cudnn_benchmark": bool,
    **dict.fromkeys(("mp_cfg", "dist_cfg", "npu_cfg"), Any),
    "resource_limit": int,
}
_PROCESSES = {
    "mp_start_method": Literal["fork", "spawn", "forkserver"],
    "opencv_num_threads": int,
}
_RANDOMNESS = {"seed": int, "diff_rank_seed": bool, "deterministic": bool}
_LOG_LEVEL = int | Literal["DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"]
# Keys of a dataloader besides the arguments of torch's DataLoader, and those checked apart.
_CHECKED_APART = (
    *("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn"),
    *("num_batch_per_epoch", "disable_subprocess_warning"),
)
# Names of one argument in different versions of torch; each is accepted by every version.
_RENAMED = ("broadcast_buffers", "forward_sync_buffers")


def validate_run(
    arguments: Mapping[str, Any], cfg: Mapping[str, Any], runner: Callable[..., Any]
) -> None:
    """Check the configuration of a run, but for its hooks, which :func:`build_hooks` checks.

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
    device_type = (given.get("env_cfg", {}).get("dist_cfg") or {}).get("device_type")
    check_optim_wrapper(given.get("optim_wrapper"), "optim_wrapper", device_type)
    num_epochs = given.get("train_cfg", {}).get("max_epochs")
    check_schedules(given.get("param_scheduler"), "param_scheduler", num_epochs)
    for place, writer in writer_configs(given.get("visualizer"), cfg.get("log_writers")).items():
        if isinstance(writer, Mapping):
            check_component(writer, LOG_WRITERS, place, given=("log_dir",))
    if cfg.get("model_wrapper_cfg") is not None:
        _check_model_wrapper(cfg["model_wrapper_cfg"], "model_wrapper_cfg")
    need_names(cfg.get("activation_checkpointing"), "activation_checkpointing")
    settings = {name: cfg[name] for name in _SETTINGS if name in cfg}
    check_section(settings, "", _SETTINGS)
    compiled = cfg.get("compile")
    if compiled is not None and compiled is not False:
        import mm_compile  # noqa: PLC0415 - many runs compile nothing

        if isinstance(compiled, Mapping) and compiled.get("cache") is True:
            compiled = {**compiled, "cache": "compile_cache"}  # beside the work directory, later
        mm_compile.can_compile(compiled)  # its messages begin with the path as well


def _check_model(model: Any, where: str) -> None:
    # A preprocessor without a type is the model's to complete, or BaseDataPreprocessor's.
    if isinstance(model, nn.Module):
        return
    need_mapping(model, where, "an nn.Module or a dict with 'type'")
    if where == "model" or "type" in model:
        check_component(model, MODELS, where)


def _check_model_wrapper(cfg: Any, where: str) -> None:
    """Check ``model_wrapper_cfg``, in a run of one process too."""
    need_mapping(cfg, where)
    default, given = "MMDistributedDataParallel", ("module",)
    component: Any = check_component(cfg, MODEL_WRAPPERS, where, default=default, given=given)
    # Ours pass unknown arguments on to torch's; a user's class may take anything.
    ours = (mm_dist.MMDistributedDataParallel, mm_dist.MMSeparateDistributedDataParallel)
    if component.__init__ in [one.__init__ for one in ours]:
        takers = (ours[0], component, DistributedDataParallel)
        known = [name for one in takers for name in inspect.signature(one).parameters]
        known = [name for name in (*known, *_RENAMED) if name != "module"]
        check_section(cfg, where, dict.fromkeys(("type", *known), Any))


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
    for name in ("max_epochs", "max_iters", "val_begin", "val_interval"):
        _check_positive(cfg, name, where)


def _check_eval_loop(cfg: Any, where: str) -> None:
    default = "ValLoop" if where.startswith("val") else "TestLoop"
    given = ("runner", "dataloader", "evaluator")
    check_component(cfg, LOOPS, where, default=default, given=given)


def _check_dataloader(cfg: Any, where: str) -> None:
    """Check the config of a dataloader; a ready one is taken as it is."""
    if isinstance(cfg, DataLoader):
        return
    need_mapping(cfg, where, "a DataLoader or a dict")
    plain = {key: value for key, value in cfg.items() if key not in _CHECKED_APART}
    check_arguments(DataLoader, plain, where, is_partial=True)
    needed = {"dataset": "a dataset, or a dict with its 'type' and arguments"}
    if cfg.get("batch_sampler") is None:
        needed["batch_size"] = "the number of samples per process and step"
    for key, text in needed.items():
        # In training null stands for the batches that a dataset gives.
        needs_number = key == "batch_size" and not where.startswith("train")
        if key not in cfg or (needs_number and cfg[key] is None):
            given = ", ".join(map(repr, cfg)) or "none"
            raise ConfigError(f"{where}.{key}: this key is missing; given: {given}. It is {text}.")
    for key in ("batch_size", "num_batch_per_epoch"):
        _check_positive(cfg, key, where)
    if isinstance(cfg["dataset"], Mapping):
        check_component(cfg["dataset"], DATASETS, f"{where}.dataset")
    else:
        check_dataset(cfg["dataset"], f"{where}.dataset")
    _check_sampling(cfg, where)


def _check_sampling(cfg: Mapping[str, Any], where: str) -> None:
    samplers = {"sampler": ("dataset", "seed"), "batch_sampler": ("sampler", "batch_size")}
    for name, arguments in samplers.items():
        sampler, place = cfg.get(name), f"{where}.{name}"
        # A sampler may be a list of indices, but no list of configs.
        first = sampler[0] if isinstance(sampler, (list, tuple)) and sampler else sampler
        if isinstance(first, Mapping) or isinstance(sampler, (bool, int, float, str)):
            need_mapping(sampler, place, "a sampler or a dict with 'type'")
            check_component(sampler, DATA_SAMPLERS, place, given=arguments)
    for name in ("collate_fn", "worker_init_fn"):
        function, place = cfg.get(name), f"{where}.{name}"
        function = {"type": function} if isinstance(function, str) else function
        if isinstance(function, Mapping):
            # It is called with a batch or a worker's number later: what is missing now comes then.
            check_cfg(function, FUNCTIONS, where=place, is_partial=True)
        elif function is not None and not callable(function):
            names = ", ".join(FUNCTIONS.names())
            need_mapping(function, place, f"a name ({names}), a dict with 'type' or a function")


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
        if isinstance(metric, Mapping):
            check_component(metric, METRICS, place)
        elif not (hasattr(metric, "process") or is_torch_metric(metric)):
            raise ConfigError(
                f"{place}: a metric, or a dict with the key 'type', is needed, got {metric!r}."
            )


def check_auto_scale(cfg: Any, where: str) -> None:
    """Check ``auto_scale_lr``."""
    check_section(cfg, where, {"base_batch_size": Any, "enable": bool})
    _check_positive(cfg, "base_batch_size", where, is_needed=bool(cfg.get("enable")))


def _check_positive(
    cfg: Mapping[str, Any], name: str, where: str, *, is_needed: bool = False
) -> None:
    if cfg.get(name) is not None or is_needed:
        check_integer(f"{where}.{name}", cfg.get(name), least=1)


def check_environment(env: Any, where: str) -> None:
    """Check ``env_cfg``; ``None`` is an empty one.

    What depends on the machine, such as whether it has the device, is found when it is set up.

    Raises:
        ConfigError: If a key is unknown, or a value cannot be used.
    """
    env = {} if env is None else env
    check_section(env, where, _ENV)
    if env.get("mp_cfg") is not None:
        check_section(env["mp_cfg"], f"{where}.mp_cfg", _PROCESSES)
    if env.get("dist_cfg") is not None:
        place = f"{where}.dist_cfg"
        # A process group that exists already may have a backend and device that we do not know.
        known = ("backend", "device_type") if mm_dist.is_distributed() else ()
        given = need_mapping(env["dist_cfg"], place)
        given = {name: value for name, value in given.items() if name not in known}
        check = partial(mm_dist.check_dist_arguments, "auto")
        _check_by(check, given, place, "init_dist")
    if env.get("npu_cfg") is not None:
        import mm_npu  # noqa: PLC0415 - few have an NPU

        _check_by(mm_npu.read_npu_switches, env["npu_cfg"], f"{where}.npu_cfg", "set_npu_switches")


def _check_by(check: Callable[..., Any], given: Any, where: str, name: str) -> None:
    """Let the package whose function ``name`` takes ``given`` check it."""
    check_arguments(check, need_mapping(given, where), where, name=name, is_partial=True)
    try:
        check(**given)
    except (mm_dist.MMDistError, ValueError) as error:
        key = re.split(r"\W", str(error), maxsplit=1)[0]
        place = f"{where}.{key}" if key in given else where
        raise ConfigError(f"{place}: {error}") from error


def _check_launcher(name: Any, where: str) -> None:
    try:
        mm_dist.check_dist_arguments(name)
    except mm_dist.MMDistError as error:
        raise ConfigError(f"{where}: {error}") from error


def check_randomness(cfg: Any, where: str) -> None:
    """Check ``randomness``.

    Raises:
        ConfigError: If a key is unknown, or a value cannot be used.
    """
    check_section(cfg, where, _RANDOMNESS)
    seed = cfg.get("seed")
    # torch's generators take 64 bits; the epoch and the process are added to it.
    if seed is not None and not 0 <= seed < 2**63:
        raise ConfigError(
            f"{where}.seed: an integer from 0 to 2**63 - 1 or None is needed, got {seed!r}."
        )


_SECTIONS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("model", "data_preprocessor"), _check_model),
    "train_cfg": check_train_loop,
    **dict.fromkeys(("val_cfg", "test_cfg"), _check_eval_loop),
    **{f"{phase}_dataloader": _check_dataloader for phase in ("train", "val", "test")},
    **dict.fromkeys(("val_evaluator", "test_evaluator"), _check_evaluator),
    "auto_scale_lr": check_auto_scale,
    "launcher": _check_launcher,
    "randomness": check_randomness,
    "env_cfg": check_environment,
    "log_level": lambda value, where: check_section({where: value}, "", {where: _LOG_LEVEL}),
    "log_processor": lambda value, _: build_log_processor(value),
    "visualizer": lambda value, _: writer_configs(value, None),
}
