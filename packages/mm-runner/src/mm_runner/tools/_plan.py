"""The plan of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mm_compile
import mm_dist
from mm_runner.errors import ConfigError, MMRunnerError
from mm_runner.evaluator import build_evaluator
from mm_runner.hooks import build_hooks
from mm_runner.hooks._metrics import refuse_missing_metrics
from mm_runner.model import (
    check_wrapped_step,
    plan_module_settings,
    uncalled_step,
    unwrap_model,
)
from mm_runner.optim import ParamScheduler, build_optim_wrapper, named_wrappers, scale_lr
from mm_runner.runner import Runner
from mm_runner.runner._checks import argument_names, check_run, own_keys
from mm_runner.runner._model import build_model, is_wrapped, with_preprocessor, wrapper_type
from mm_runner.runner._resume import refuse_url

from ._plan_memory import bytes_by_dtype, describe_memory
from ._plan_schedule import Length, build_schedules, length_of_run, rates_at_key_steps

__all__ = ["make_plan"]

_WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def make_plan(cfg: Mapping[str, Any], *, world_size: int | None = None) -> dict[str, Any]:
    """Build everything that a training needs without memory, data or other processes.

    Args:
        cfg: The full configuration.
        world_size: Processes to plan for; by default those of the launcher that started this one,
            or one.

    Returns:
        The plan, in primitives: ``model``, ``optimizers``, ``batch``, ``length``, ``schedule``,
        ``memory`` (bytes by dtype, of each process: ``gradients``, ``optimizer_state``,
        ``averages``, ``ddp_buckets``), ``acceleration``, ``hooks``, ``notes``.

    Raises:
        ConfigError: If something does not fit.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    check_run(cfg, Runner)
    _check_checkpoint(cfg.get("load_from"))
    notes: list[str] = []
    world_size = _world_size() if world_size is None else world_size
    if world_size < 1:
        raise ConfigError(f"world_size={world_size} was given; a positive number is needed.")
    device_type = _device_type(cfg)
    hooks = build_hooks(cfg.get("default_hooks"), cfg.get("custom_hooks"))
    reported = {
        phase: build_evaluator(
            cfg[f"{phase}_evaluator"], where=f"{phase}_evaluator"
        ).reported_names()
        for phase in ("val", "test")
        if cfg.get(f"{phase}_evaluator") is not None
    }
    model = _model_without_memory(cfg, notes)
    settings = plan_module_settings(unwrap_model(model), cfg)
    plan: dict[str, Any] = {"model": _describe_model(model)}
    if cfg.get("optim_wrapper") is not None:
        if world_size > 1:
            _check_wrapped(cfg, model, notes)
        wrapper = build_optim_wrapper(model, _for_meta(cfg["optim_wrapper"], device_type))
        length = length_of_run(cfg, world_size)
        training, schedules = _plan_training(cfg, wrapper, length, world_size, notes)
        plan |= training
        names = reported.get("val")
        if names is not None:
            refuse_missing_metrics(names, hooks.hooks, schedules)
        plan["memory"] = describe_memory(
            model, wrapper, hooks.hooks, cfg.get("model_wrapper_cfg"), world_size, notes
        )
    plan["acceleration"] = _acceleration(cfg, plan, device_type, world_size)
    plan["acceleration"] |= settings
    if "FullySharded" in str(plan["acceleration"]["wrapper"]):
        notes.append(f"Each process keeps about 1/{world_size} of the memory listed.")
    if cfg.get("resume_data") is False:
        notes.append("A resumed run starts its data anew (resume_data).")
    unused = own_keys(cfg, argument_names(Runner))
    if unused:
        notes.append(
            f"Keys of the configuration's own, which nothing here uses: {', '.join(unused)}."
        )
    plan["hooks"] = [type(hook).__name__ for hook in hooks.hooks]
    plan["notes"] = notes
    return plan


def _check_checkpoint(load_from: Any) -> None:
    refuse_url(load_from)
    if load_from is not None and not Path(load_from).is_file():
        raise ConfigError(f"load_from: {str(load_from)!r} was given; there is no such file.")


def _model_without_memory(cfg: Mapping[str, Any], notes: list[str]) -> nn.Module:
    """Build the model on the meta device; with its values where it, or torch, needs them."""
    model = with_preprocessor(cfg["model"], cfg.get("data_preprocessor"))
    if not hasattr(torch, "set_default_device"):
        notes.append("The model was built with its values: torch before 2.0 has no other way.")
        return build_model(model)
    try:
        with torch.device("meta"):
            return build_model(model)
    except MMRunnerError as error:
        if error.__cause__ is None:  # a mistake of the user's
            raise
        reason: BaseException = error.__cause__
    except Exception as error:  # noqa: BLE001 - whatever a model does with values
        reason = error
    notes.append(f"The model was built with its values: without them it fails ({reason}).")
    return build_model(model)


def _describe_model(model: nn.Module) -> dict[str, Any]:
    parameters, buffers = list(model.parameters()), list(model.buffers())
    return {
        "name": type(model).__name__,
        "parameters": _count(parameters),
        "trained": _count(one for one in parameters if one.requires_grad),
        "buffers": _count(buffers),
        "bytes": bytes_by_dtype([*parameters, *buffers]),
    }


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _check_wrapped(cfg: Mapping[str, Any], model: nn.Module, notes: list[str]) -> None:
    """Raise if the wrapper for several processes cannot train the model."""
    wrapper = type(model) if is_wrapped(model) else wrapper_type(cfg.get("model_wrapper_cfg") or {})
    check_wrapped_step(unwrap_model(model), wrapper)
    warning = uncalled_step(unwrap_model(model), wrapper)
    if warning is not None:
        notes.append(warning)


def _for_meta(cfg: Any, device_type: str) -> Any:
    """Return the optimizers' config for parameters on meta: no fused kernels, autocast's device."""
    if not isinstance(cfg, Mapping):
        return cfg
    changed = {name: _for_meta(part, device_type) for name, part in cfg.items() if name != "fused"}
    if cfg.get("type") == "AmpOptimWrapper" and cfg.get("device_type") is None:
        changed["device_type"] = device_type
    return changed


def _plan_training(
    cfg: Mapping[str, Any], wrapper: Any, length: Length, world_size: int, notes: list[str]
) -> tuple[dict[str, Any], list[ParamScheduler]]:
    per_process = length.per_process or 1
    batches = {
        name: world_size * per_process * getattr(one, "accumulative_counts", 1)
        for name, one in named_wrappers(wrapper).items()
    }
    for name, one in named_wrappers(wrapper).items():
        scale_lr(one, cfg.get("auto_scale_lr") or {}, batches[name])
        counts = getattr(one, "accumulative_counts", 1)
        if counts > 1:
            subject = f"{name}: the" if name else "The"
            notes.append(
                f"{subject} optimizer steps once in {counts} steps of the run, which are batches. "
                "Schedules with by_epoch=False, max_iters and intervals count batches."
            )
    schedules = build_schedules(wrapper, cfg.get("param_scheduler"), length)
    plan = {
        "optimizers": _describe_optimizers(wrapper),
        "batch": {"per_process": per_process, "world_size": world_size, "effective": batches},
        "length": {
            "epochs": length.num_epochs if length.by_epoch else None,
            "steps_per_epoch": length.epoch_steps,
            "steps": length.num_steps,
        },
        "schedule": rates_at_key_steps(wrapper, schedules, length, notes),
    }
    return plan, schedules


def _describe_optimizers(optim_wrapper: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "wrapper": type(wrapper).__name__,
            "optimizer": type(wrapper.optimizer).__name__,
            "from": type(wrapper.optimizer).__module__,
            "accumulative_counts": getattr(wrapper, "accumulative_counts", 1),
            "precision": str(getattr(wrapper, "dtype", "float32")).removeprefix("torch."),
            "groups": [_describe_group(group) for group in wrapper.optimizer.param_groups],
        }
        for name, wrapper in named_wrappers(optim_wrapper).items()
    ]


def _describe_group(group: Mapping[str, Any]) -> dict[str, Any]:
    settings = {
        name: _as_number(group[name])
        for name in ("lr", "weight_decay", "momentum", "betas")
        if name in group
    }
    count = sum(parameter.numel() for parameter in group["params"])
    return {"parameters": count, "tensors": len(group["params"]), **settings}


def _as_number(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_number(one) for one in value]
    return float(value) if isinstance(value, Tensor) else value


def _acceleration(
    cfg: Mapping[str, Any], plan: Mapping[str, Any], device_type: str, world_size: int
) -> dict[str, Any]:
    compiled = cfg.get("compile")
    if isinstance(compiled, Mapping) and compiled.get("cache") is True:
        compiled = {**compiled, "cache": "compile_cache"}  # beside the work directory
    support = mm_compile.can_compile(compiled, device_type)
    is_on = compiled not in (None, False)
    wrapper = (cfg.get("model_wrapper_cfg") or {}).get("type", "MMDistributedDataParallel")
    optimizers = plan.get("optimizers", [])
    return {
        "device": device_type,
        "precision": {one["name"]: one["precision"] for one in optimizers},
        "compile": "off" if not is_on else compiled if support.ok else f"cannot: {support.reason}",
        "wrapper": None if world_size == 1 else getattr(wrapper, "__name__", wrapper),
        "optimizer": {one["name"]: f"{one['from']}.{one['optimizer']}" for one in optimizers},
    }


def _device_type(cfg: Mapping[str, Any]) -> str:
    dist_cfg = (cfg.get("env_cfg") or {}).get("dist_cfg") or {}
    return dist_cfg.get("device_type") or mm_dist.available_device_type()


def _world_size() -> int:
    if mm_dist.infer_launcher() == "none":
        return 1
    given = [os.environ[name] for name in _WORLD_SIZES if os.environ.get(name, "").isdecimal()]
    return int(given[0]) if given else 1
