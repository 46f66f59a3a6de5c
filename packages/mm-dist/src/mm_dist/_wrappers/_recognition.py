"""Recognize model wrappers."""

import sys
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mm_dist._torch_private import find_compiled

_WRAPPERS = (
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("torch.distributed.fsdp", "FSDPModule"),
    ("mm_dist._wrappers.fsdp", "MMFullyShardedDataParallel"),
    ("mm_dist._wrappers.separate_ddp", "MMSeparateDistributedDataParallel"),
)


def is_model_wrapper(model: nn.Module) -> bool:
    """Return whether a module already is a wrapper that synchronizes or shards a model.

    Recognizes torch's ``DistributedDataParallel``, ``DataParallel`` and both generations of its
    fully sharded modules, and their subclasses, ours among them. What ``torch.compile`` returned
    is what was compiled: a wrapper if that was one.
    """
    # A class whose module was never imported has no instances: importing it would cost seconds.
    loaded: list[Any] = [getattr(sys.modules.get(place), name, None) for place, name in _WRAPPERS]
    wrappers = (DistributedDataParallel, DataParallel, *filter(None, loaded))
    return isinstance(find_compiled(model), wrappers)
