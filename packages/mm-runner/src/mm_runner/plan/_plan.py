"""The plan of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mm_compile
import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.evaluator import build_evaluator
from mm_runner.hooks import build_hooks
from mm_runner.hooks._metrics_asked import refuse_missing_metrics
from mm_runner.model import plan_module_settings, unwrap_model
from mm_runner.optim import ParamScheduler, named_wrappers, scale_lr
from mm_runner.runner import Runner
from mm_runner.runner._checks import argument_names, check_run, own_keys
from mm_runner.runner._resume import refuse_url

from ._length import Length, length_of_run
from ._memory import describe_memory
from ._model import check_step_of_plan, describe_model, model_without_memory
from ._optimizer_state import without_compiler
from ._optimizers import describe_optimizers, wrapper_of_plan
from ._schedule import build_schedules, rates_at_key_steps

__all__ = ["make_plan"]

_WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@without_compiler()
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
    model = model_without_memory(cfg, notes)
    settings = plan_module_settings(unwrap_model(model), cfg)
    plan: dict[str, Any] = {"model": describe_model(model)}
    if cfg.get("optim_wrapper") is not None:
        if world_size > 1:
            check_step_of_plan(cfg, model, notes)
        wrapper = wrapper_of_plan(model, cfg["optim_wrapper"], device_type, notes)
        length = length_of_run(cfg, world_size)
        training, schedules = _plan_training(cfg, wrapper, length, world_size, notes)
        plan |= training
        names = reported.get("val")
        if names is not None:
            refuse_missing_metrics(names, hooks.hooks, schedules)
        plan["memory"] = describe_memory(
            cfg,
            model,
            wrapper,
            hooks.hooks,
            length,
            notes,
            world_size=world_size,
            device_type=device_type,
        )
    plan["acceleration"] = _acceleration(cfg, plan, device_type, world_size)
    plan["acceleration"] |= settings
    if "FullySharded" in str(plan["acceleration"]["wrapper"]):
        notes.append(f"Each process keeps about 1/{world_size} of what is listed as memory.")
    if cfg.get("resume_data") is False:
        notes.append("A run that is resumed begins its data anew (resume_data).")
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
            of_whom = f"{name}: the" if name else "The"
            notes.append(
                f"{of_whom} optimizer steps once in {counts} steps of the run, which are batches. "
                "Schedules with by_epoch=False, max_iters and intervals count batches."
            )
    schedules = build_schedules(wrapper, cfg.get("param_scheduler"), length)
    plan = {
        "optimizers": describe_optimizers(wrapper),
        "batch": {"per_process": per_process, "world_size": world_size, "effective": batches},
        "length": {
            "epochs": length.num_epochs if length.by_epoch else None,
            "steps_per_epoch": length.epoch_steps,
            "steps": length.num_steps,
        },
        "schedule": rates_at_key_steps(wrapper, schedules, length, notes),
    }
    return plan, schedules


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
