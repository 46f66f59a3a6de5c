"""What ``torch_npu._C`` offers, where torch has no device ``npu``: one, which is the CPU."""

import torch


def device_count():
    return 1


def current_device():
    return 0


def set_device(index):
    if index != 0:
        raise RuntimeError(f"no NPU {index} of 1")


def memory_allocated(index):
    del index
    return 0


max_memory_allocated = memory_allocated
reset_peak_memory_stats = memory_allocated


def default_generator(index):
    del index
    return torch.default_generator
