"""The plan of a run, for ``mm-runner check``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import mm_compile
import mm_dist
from mm_runner.data import DataSettings, build_dataloader, num_batches
from mm_runner.errors import ConfigError, MMRunnerError, with_place
from mm_runner.evaluator import build_evaluator
from mm_runner.hooks import EMAHook, build_hooks
from mm_runner.hooks._metrics import refuse_missing_metrics
from mm_runner.model import (
    MODULE_SETTINGS,
    check_module_settings,
    find_module_settings,
    uncalled_step,
    unwrap_model,
)
from mm_runner.optim import (
    ParamScheduler,
    build_optim_wrapper,
    build_param_schedulers,
    named_schedulers,
    named_wrappers,
    scale_lr,
)
from mm_runner.runner import Runner
from mm_runner.runner._checks import argument_names, check_run, own_keys
from mm_runner.runner._model import build_model, is_wrapped, with_preprocessor, wrapper_type
from mm_runner.runner._resume import refuse_url

__all__ = ["make_plan"]

_HALF = (torch.float16, torch.bfloat16)
# Schedules are followed step by step: a few seconds at most.
_MOST_STEPS = 200_000
_PARTS = 4

_Lines = Iterator[tuple[str, str]]


def make_plan(cfg: Mapping[str, Any], *, world_size: int = 1) -> str:
    """Build everything that a training needs without memory, data or other processes.

    Args:
        cfg: The full configuration.
        world_size: Processes to plan for.

    Returns:
        Lines with their subject in front: model, optimizer with its groups, batch, length,
        schedule, memory of each process, device, precision, compilation, wrapper, hooks, notes.

    Raises:
        ConfigError: If something does not fit.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    lines = _plan(cfg, world_size)
    return "".join(f"{subject:<14}{text}".rstrip() + "\n" for subject, text in lines)


def _plan(cfg: Mapping[str, Any], world_size: int) -> _Lines:
    check_run(cfg, Runner)
    load_from = cfg.get("load_from")
    refuse_url(load_from)
    if load_from is not None and not Path(load_from).is_file():
        raise ConfigError(f"load_from: {str(load_from)!r} was given; there is no such file.")
    if world_size < 1:
        raise ConfigError(f"world_size={world_size} was given; a positive number is needed.")
    notes: list[str] = []
    dist_cfg = (cfg.get("env_cfg") or {}).get("dist_cfg") or {}
    device_type = dist_cfg.get("device_type") or mm_dist.available_device_type()
    hooks = build_hooks(cfg.get("default_hooks"), cfg.get("custom_hooks")).hooks
    reported: dict[str, Any] = {}
    for where in ("val_evaluator", "test_evaluator"):
        if cfg.get(where) is not None:
            reported[where] = build_evaluator(cfg[where], where=where).reported_names()
    model = _model_without_memory(cfg, notes)
    find_module_settings(unwrap_model(model), cfg)  # raises where a name matches nothing
    yield "model", _describe_model(model)
    wrappers: dict[str, Any] = {}
    if cfg.get("optim_wrapper") is not None:
        if world_size > 1:
            kind = type(model) if is_wrapped(model) else wrapper_type(_wrapper_cfg(cfg))
            warning = uncalled_step(unwrap_model(model), kind)
            notes += [warning] if warning is not None else []
        wrapper = build_optim_wrapper(model, _for_meta(cfg["optim_wrapper"], device_type))
        wrappers = named_wrappers(wrapper)
        length = _length_of_run(cfg, world_size)
        yield from _optimizer_lines(cfg, wrappers, length, world_size, notes)
        schedules = _build_schedules(wrapper, cfg, length)
        if reported.get("val_evaluator") is not None:
            refuse_missing_metrics(reported["val_evaluator"], hooks, schedules)
        yield from _schedule_lines(wrappers, schedules, length, notes)
        yield from _memory_lines(cfg, model, wrappers, hooks, world_size, notes)
    yield "device", device_type
    dtypes = {name: getattr(one, "dtype", "float32") for name, one in wrappers.items()}
    yield "precision", ", ".join(_named(dtypes)).replace("torch.", "") or "float32"
    yield "compile", _compilation(cfg.get("compile"), device_type)
    for key, names in check_module_settings(cfg).items():
        yield MODULE_SETTINGS[key], ", ".join(names)
    yield "wrapper", _wrapper_name(cfg) if world_size > 1 else "none (one process)"
    yield "hooks", ", ".join(type(hook).__name__ for hook in hooks)
    yield from (("note", note) for note in [*notes, *_further_notes(cfg, world_size)])


def _further_notes(cfg: Mapping[str, Any], world_size: int) -> Iterator[str]:
    if world_size > 1 and "FullySharded" in _wrapper_name(cfg):
        yield f"Each process keeps about 1/{world_size} of the memory listed."
    unused = own_keys(cfg, argument_names(Runner))
    if unused:
        yield f"Keys of the configuration's own, which nothing here uses: {', '.join(unused)}."


def _wrapper_cfg(cfg: Mapping[str, Any]) -> Mapping[str, Any]:
    return cfg.get("model_wrapper_cfg") or {}


def _wrapper_name(cfg: Mapping[str, Any]) -> str:
    kind = _wrapper_cfg(cfg).get("type", "MMDistributedDataParallel")
    return str(getattr(kind, "__name__", kind))


def _model_without_memory(cfg: Mapping[str, Any], notes: list[str]) -> nn.Module:
    """Build the model on the meta device; with its values where it, or torch, needs them."""
    model = with_preprocessor(cfg["model"], cfg.get("data_preprocessor"))
    if not hasattr(torch, "set_default_device"):
        notes.append("The model was built with its values: torch before 2.0 has no other way.")
        return build_model(model)
    try:
        with torch.device("meta"):
            return build_model(model)
    except Exception as error:
        if isinstance(error, MMRunnerError) and error.__cause__ is None:  # a mistake of the user's
            raise
        reason = error.__cause__ if isinstance(error, MMRunnerError) else error
    notes.append(f"The model was built with its values: without them it fails ({reason}).")
    return build_model(model)


def _describe_model(model: nn.Module) -> str:
    parameters, buffers = list(model.parameters()), list(model.buffers())
    counts = [
        sum(one.numel() for one in tensors)
        for tensors in (parameters, [p for p in parameters if p.requires_grad], buffers)
    ]
    return (
        f"{type(model).__name__}: {counts[0]:,} parameters, {counts[1]:,} trained, and "
        f"{counts[2]:,} numbers in buffers; {_mebibytes(_size([*parameters, *buffers]))}"
    )


def _for_meta(cfg: Any, device_type: str) -> Any:
    """Return the optimizers' config for parameters on meta: no fused kernels, autocast's device."""
    if not isinstance(cfg, Mapping):
        return cfg
    changed = {name: _for_meta(part, device_type) for name, part in cfg.items() if name != "fused"}
    if cfg.get("type") == "AmpOptimWrapper" and cfg.get("device_type") is None:
        changed["device_type"] = device_type
    return changed


class _Length(NamedTuple):
    """Length of a run; ``epoch_steps`` is ``None`` where the data have no length."""

    num_epochs: int
    epoch_steps: int | None
    num_steps: int
    batch_size: int
    by_epoch: bool


def _length_of_run(cfg: Mapping[str, Any], world_size: int) -> _Length:
    """Return the length of the run; the dataset is built, nothing is read from it."""
    where, train_cfg = "train_dataloader", cfg["train_cfg"]
    settings = DataSettings(0, torch.Generator(), 0, world_size)
    loader = build_dataloader(cfg[where], settings, shuffle=True, where=where)
    batch_size = getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size or 1
    if train_cfg.get("max_iters") is not None and train_cfg.get("max_epochs") is None:
        try:
            steps = _epoch_steps(loader, world_size) or None
        except TypeError:
            steps = None
        return _Length(1, steps, int(train_cfg["max_iters"]), batch_size, by_epoch=False)
    num_batches(loader, where)
    steps = _epoch_steps(loader, world_size)
    num_epochs = int(train_cfg["max_epochs"])
    return _Length(num_epochs, steps, num_epochs * steps, batch_size, by_epoch=True)


def _epoch_steps(loader: DataLoader[Any], world_size: int) -> int:
    if loader.batch_size is None or world_size == 1:
        return math.ceil(len(loader) / world_size)
    share = math.ceil(len(loader.sampler) / world_size)  # type: ignore[arg-type]
    return share // loader.batch_size if loader.drop_last else math.ceil(share / loader.batch_size)


def _optimizer_lines(
    cfg: Mapping[str, Any],
    wrappers: Mapping[str, Any],
    length: _Length,
    world_size: int,
    notes: list[str],
) -> _Lines:
    batches = {}
    for name, wrapper in wrappers.items():
        prefix = f"{name}: " if name else ""
        counts = getattr(wrapper, "accumulative_counts", 1)
        effective = world_size * length.batch_size * counts
        scaling = cfg.get("auto_scale_lr") or {}
        if scaling.get("enable", False):
            scale_lr(wrapper, effective / scaling["base_batch_size"])
        if counts > 1:
            notes.append(
                f"{prefix}The optimizer steps once in {counts} steps of the run, which are batches."
                " Schedules with by_epoch=False, max_iters and intervals count batches."
            )
        batches[name] = (
            f"{prefix}{effective} = {length.batch_size} of a process x {world_size} process(es) x "
            f"{counts} accumulated"
        )
        kind = type(wrapper.optimizer)
        yield "optimizer", f"{prefix}{kind.__module__}.{kind.__name__} in {type(wrapper).__name__}"
        for index, group in enumerate(wrapper.optimizer.param_groups):
            settings = ", ".join(
                f"{key} {float(group[key]):g}" if key != "betas" else f"{key} {group[key]}"
                for key in ("lr", "weight_decay", "momentum", "betas")
                if key in group
            )
            count = sum(parameter.numel() for parameter in group["params"])
            tensors = len(group["params"])
            yield f"  group {index}", f"{count:,} parameters in {tensors} tensors; {settings}"
    yield from (("batch", text) for text in batches.values())
    shape = ""
    if length.by_epoch:
        shape = f" = {length.num_epochs} epochs x {length.epoch_steps}"
    elif length.epoch_steps:
        shape = f"; {length.epoch_steps} go through the data once"
    yield "length", f"{length.num_steps} steps{shape}"


def _build_schedules(wrapper: Any, cfg: Mapping[str, Any], length: _Length) -> list[ParamScheduler]:
    schedules = build_param_schedulers(
        wrapper,
        cfg.get("param_scheduler"),
        num_epochs=length.num_epochs,
        num_iters=length.num_steps,
        epoch_length=length.epoch_steps,
    )
    return [one for group in named_schedulers(schedules).values() for one in group]


def _schedule_lines(
    wrappers: Mapping[str, Any],
    schedules: list[ParamScheduler],
    length: _Length,
    notes: list[str],
) -> _Lines:
    """Step through the schedules; yield the rates at the beginning, turns and end."""
    followed = [one for one in schedules if not one.need_val_args]
    if len(followed) < len(schedules):
        notes.append("A schedule follows a metric, and is not shown.")
    if not length.by_epoch and any(one.by_epoch for one in followed):
        notes.append("A schedule counts epochs, and the run counts iterations: it will not change.")
    epoch_steps = (length.by_epoch and length.epoch_steps) or length.num_steps
    stride = epoch_steps if all(one.by_epoch for one in followed) else 1
    last = length.num_steps - 1 if followed else 0
    if last // stride > _MOST_STEPS:
        last = _MOST_STEPS * stride
        notes.append(f"The schedule is shown up to step {last}.")
    key_steps = {0, last, *(last * part // _PARTS for part in range(_PARTS))}
    for one in followed:
        unit = epoch_steps if one.by_epoch else 1
        key_steps |= {one.begin * unit, one.end * unit}
    key_strides = {step // stride for step in key_steps}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer does not step between
        for step in range(0, last + 1, stride):
            if step // stride in key_strides:
                rates = {
                    name: f"{float(one.optimizer.param_groups[0]['lr']):.4g}"
                    for name, one in wrappers.items()
                }
                epoch = f", epoch {step // epoch_steps}" if length.by_epoch else ""
                yield "schedule", f"step {step}{epoch}: lr {', '.join(_named(rates))}"
            for one in followed:
                if not one.by_epoch or (length.by_epoch and (step + stride) % epoch_steps == 0):
                    _step(one)


def _step(schedule: Any) -> None:
    try:
        schedule.step()
    except Exception as error:
        raise ConfigError(
            f"{schedule.where}: it fails before the run is over: {with_place(error)}."
        ) from error


def _memory_lines(
    cfg: Mapping[str, Any],
    model: nn.Module,
    wrappers: Mapping[str, Any],
    hooks: Iterable[Any],
    world_size: int,
    notes: list[str],
) -> _Lines:
    """Yield the memory of each process, as far as it is certain."""
    groups = [group for one in wrappers.values() for group in one.optimizer.param_groups]
    trained = [one for group in groups for one in group["params"] if one.requires_grad]
    parts: dict[str, int | None] = {
        "model": _size([*model.parameters(), *model.buffers()]),
        "gradients": _size(trained),
        "optimizer": _state_size(wrappers, notes),
    }
    besides = "activations, batches, what kernels and communication need"
    averages = sum(isinstance(hook, EMAHook) for hook in hooks)
    if averages:
        parts["average"] = averages * sum(
            one.numel() * (4 if one.dtype in _HALF else one.element_size()) for one in trained
        )
        besides += ", the weights once more while their average is validated"
    is_ddp = _wrapper_name(cfg).endswith("DistributedDataParallel")
    if world_size > 1 and is_ddp and not _wrapper_cfg(cfg).get("gradient_as_bucket_view"):
        parts["DDP buckets"] = parts["gradients"]
    total = _mebibytes(sum(size or 0 for size in parts.values()))
    text = "; ".join(f"{name} {_mebibytes(size)}" for name, size in parts.items())
    yield "memory", f"{total} in each process: {text}"
    yield "", f"not counted: {besides}, what code of your own keeps"


def _state_size(wrappers: Mapping[str, Any], notes: list[str]) -> int | None:
    """Take a step over parameters without values, and count what the optimizers keep."""
    total = 0
    for optimizer in (wrapper.optimizer for wrapper in wrappers.values()):
        for parameter in [one for group in optimizer.param_groups for one in group["params"]]:
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                optimizer.step()
        except Exception as error:  # noqa: BLE001 - some read values, or need a closure
            reason = f"{type(error).__name__}: {error}"[:200]
            notes.append(f"What {type(optimizer).__name__} keeps is not known: {reason}")
            return None
        values = [one for state in optimizer.state.values() for one in state.values()]
        total += _size(one for one in values if isinstance(one, Tensor))
    return total


def _compilation(compiled: Any, device_type: str) -> str:
    if compiled in (None, False):
        return "off"
    if isinstance(compiled, Mapping) and compiled.get("cache") is True:
        compiled = {**compiled, "cache": "compile_cache"}  # beside the work directory
    support = mm_compile.can_compile(compiled, device_type)
    return str(compiled) if support.ok else f"cannot: {support.reason}"


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _mebibytes(size: int | None) -> str:
    return "not known" if size is None else f"{size / 2**20:,.2f} MiB"


def _named(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {value}" if name else f"{value}" for name, value in values.items()]
