"""Model wrappers for distributed training."""

from mm_dist._wrappers._recognition import is_model_wrapper
from mm_dist._wrappers._steps import OptimWrapperProtocol
from mm_dist._wrappers._sync_batch_norm import convert_sync_batchnorm, revert_sync_batchnorm
from mm_dist._wrappers.ddp import MMDistributedDataParallel
from mm_dist._wrappers.fsdp import MMFullyShardedDataParallel
from mm_dist._wrappers.separate_ddp import MMSeparateDistributedDataParallel

__all__ = [
    "MMDistributedDataParallel",
    "MMFullyShardedDataParallel",
    "MMSeparateDistributedDataParallel",
    "OptimWrapperProtocol",
    "convert_sync_batchnorm",
    "is_model_wrapper",
    "revert_sync_batchnorm",
]
