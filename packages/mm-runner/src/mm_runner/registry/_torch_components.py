"""torch's own components, read from torch itself so that new ones need no change here."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import lr_scheduler

from mm_runner._torch_private import scheduler_base

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["torch_model_wrappers", "torch_optimizers", "torch_param_schedulers"]


def torch_optimizers() -> dict[str, Any]:
    """Return the optimizers of ``torch.optim`` by name."""
    return _subclasses(torch.optim, torch.optim.Optimizer)


def torch_param_schedulers() -> dict[str, Any]:
    """Return the schedulers of ``torch.optim.lr_scheduler`` by name."""
    return _subclasses(lr_scheduler, scheduler_base())


def torch_model_wrappers() -> dict[str, Any]:
    """Return torch's model wrappers by name."""
    return {
        "DataParallel": DataParallel,
        "DistributedDataParallel": DistributedDataParallel,
    }


def _subclasses(module: ModuleType, base: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, base)
        and value is not base
        and not name.startswith("_")
    }
