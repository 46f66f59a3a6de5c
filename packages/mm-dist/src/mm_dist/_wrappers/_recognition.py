"""Tell a model wrapper from a model."""

import sys
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mm_dist._torch_private import find_compiled

# Where torch has kept the classes of sharded modules, by version, and where ours are.
_WRAPPERS = (
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("torch.distributed.fsdp", "FSDPModule"),
    ("torch.distributed._composable.fsdp", "FSDPModule"),
    ("mm_dist._wrappers.fsdp", "MMFullyShardedDataParallel"),
    ("mm_dist._wrappers.separate_ddp", "MMSeparateDistributedDataParallel"),
)
_COMPILED = (("torch._dynamo.eval_frame", "OptimizedModule"),)


def is_model_wrapper(model: nn.Module) -> bool:
    """Return whether a module already is a wrapper that synchronises or shards a model.

    Recognises torch's ``DistributedDataParallel``, ``DataParallel`` and both generations of its
    fully sharded modules, and their subclasses, ours among them. What ``torch.compile`` returned
    is what was compiled: a wrapper if that was one.

    Example:
        >>> is_model_wrapper(nn.Linear(2, 2))
        False
    """
    compiled = tuple(_loaded_classes(_COMPILED))
    inner: Any = model
    if isinstance(inner, compiled):
        inner = find_compiled(inner)
    wrappers = _loaded_classes(_WRAPPERS)
    return isinstance(inner, (DistributedDataParallel, DataParallel, *wrappers))


def _loaded_classes(places: Iterable[tuple[str, str]]) -> list[type[Any]]:
    # A class whose module was never imported has no instances: importing it would cost seconds.
    modules = ((sys.modules.get(module), name) for module, name in places)
    return [getattr(module, name) for module, name in modules if hasattr(module, name)]
