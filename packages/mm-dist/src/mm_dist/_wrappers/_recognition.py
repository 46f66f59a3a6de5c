"""Tell a model wrapper from a model."""

import sys

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

# Where torch has kept the classes of sharded modules, by version, and where ours is.
_SHARDED = (
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("torch.distributed.fsdp", "FSDPModule"),
    ("torch.distributed._composable.fsdp", "FSDPModule"),
    ("mm_dist._wrappers.fsdp", "MMFullyShardedDataParallel"),
)


def is_model_wrapper(model: nn.Module) -> bool:
    """Return whether a module already is a wrapper that synchronises or shards a model.

    Recognises torch's ``DistributedDataParallel``, ``DataParallel`` and both generations of its
    fully sharded modules, and their subclasses, ours among them.

    Example:
        >>> is_model_wrapper(nn.Linear(2, 2))
        False
    """
    return isinstance(model, (DistributedDataParallel, DataParallel, *_loaded_sharded_classes()))


def _loaded_sharded_classes() -> list[type]:
    # A class whose module was never imported has no instances: importing it would cost seconds.
    modules = ((sys.modules.get(module), name) for module, name in _SHARDED)
    return [getattr(module, name) for module, name in modules if hasattr(module, name)]
