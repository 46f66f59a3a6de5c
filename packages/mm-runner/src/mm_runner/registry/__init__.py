"""Registries: every kind of component that a configuration can name.

A name is resolved among the components registered in this process, then torch's own, then the
entry points of installed distributions.
"""

from __future__ import annotations

from inspect import isclass
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import lr_scheduler

from mm_runner._torch_private import scheduler_base

from ._bridges import adopt, derives_from_library, prepare_libraries
from ._build import (
    build_from_cfg,
    check_arguments,
    check_cfg,
    check_integer,
    check_section,
    check_type,
    need_mapping,
    need_names,
    short_repr,
)
from ._registry import Registry
from ._scope import DefaultScope, init_default_scope, origins

__all__ = [
    "DATASETS",
    "DATA_SAMPLERS",
    "EVALUATOR",
    "FUNCTIONS",
    "HOOKS",
    "INFERENCERS",
    "LOG_PROCESSORS",
    "LOG_WRITERS",
    "LOOPS",
    "METRICS",
    "MODELS",
    "MODEL_WRAPPERS",
    "OPTIMIZERS",
    "OPTIM_WRAPPERS",
    "OPTIM_WRAPPER_CONSTRUCTORS",
    "PARAM_SCHEDULERS",
    "RUNNERS",
    "RUNNER_CONSTRUCTORS",
    "STRATEGIES",
    "TASK_UTILS",
    "TRANSFORMS",
    "VISBACKENDS",
    "VISUALIZERS",
    "WEIGHT_INITIALIZERS",
    "DefaultScope",
    "Registry",
    "adopt",
    "build_from_cfg",
    "check_arguments",
    "check_cfg",
    "check_integer",
    "check_section",
    "check_type",
    "derives_from_library",
    "init_default_scope",
    "need_mapping",
    "need_names",
    "origins",
    "prepare_libraries",
    "short_repr",
]


def _public_classes(module: Any, base: type) -> dict[str, Any]:
    """Return what a module of torch has now, so that new classes need no change here."""
    return {
        name: value
        for name, value in vars(module).items()
        if isclass(value) and issubclass(value, base) and value is not base and name[0] != "_"
    }


def build_runner_from_cfg(cfg: Any, registry: Registry, default_args: Any = None) -> Any:
    """Build the runner that ``cfg["runner_type"]`` names, by default ``Runner``."""
    whole = {**(default_args or {}), **need_mapping(cfg, "cfg")}
    kind = whole.get("runner_type", "Runner")
    runner: Any = registry.get(kind) if isinstance(kind, str) else kind
    return runner.from_cfg(whole if default_args else cfg)


MODELS = Registry("model", entry_point_group="mm.models")
MODEL_WRAPPERS = Registry(
    "model wrapper",
    entry_point_group="mm.model_wrappers",
    torch_components=lambda: {
        "DataParallel": DataParallel,
        "DistributedDataParallel": DistributedDataParallel,
    },
)
OPTIMIZERS = Registry(
    "optimizer",
    entry_point_group="mm.optimizers",
    torch_components=lambda: _public_classes(torch.optim, torch.optim.Optimizer),
)
OPTIM_WRAPPERS = Registry("optim wrapper", entry_point_group="mm.optim_wrappers")
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    "optim wrapper constructor", entry_point_group="mm.optim_wrapper_constructors"
)
PARAM_SCHEDULERS = Registry(
    "parameter scheduler",
    entry_point_group="mm.param_schedulers",
    torch_components=lambda: _public_classes(lr_scheduler, scheduler_base()),
)
HOOKS = Registry("hook", entry_point_group="mm.hooks")
LOOPS = Registry("loop", entry_point_group="mm.loops")
DATASETS = Registry("dataset", entry_point_group="mm.datasets")
DATA_SAMPLERS = Registry("data sampler", entry_point_group="mm.samplers")
METRICS = Registry("metric", entry_point_group="mm.metrics")
FUNCTIONS = Registry("function", entry_point_group="mm.collate_fns")
LOG_WRITERS = Registry("log writer", entry_point_group="mm.log_writers")
LOG_PROCESSORS = Registry("log processor", entry_point_group="mm.log_processors")
EVALUATOR = Registry("evaluator", entry_point_group="mm.evaluators")
RUNNERS = Registry("runner", build_runner_from_cfg, entry_point_group="mm.runners")
# For the components of libraries; mm-runner itself builds nothing of them.
RUNNER_CONSTRUCTORS = Registry("runner constructor")
STRATEGIES = Registry("strategy")
TRANSFORMS = Registry("transform")
WEIGHT_INITIALIZERS = Registry("weight initializer")
TASK_UTILS = Registry("task util")
VISUALIZERS = Registry("visualizer")
VISBACKENDS = Registry("visualizer backend")
INFERENCERS = Registry("inferencer")
