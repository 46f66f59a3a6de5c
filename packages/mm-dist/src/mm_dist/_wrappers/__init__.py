"""Wrappers that make a model train on many ranks."""

from mm_dist._wrappers._recognition import is_model_wrapper
from mm_dist._wrappers._steps import OptimWrapperProtocol
from mm_dist._wrappers.ddp import MMDistributedDataParallel

__all__ = ["MMDistributedDataParallel", "OptimWrapperProtocol", "is_model_wrapper"]
