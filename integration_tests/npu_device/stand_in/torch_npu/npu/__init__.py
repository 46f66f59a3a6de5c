"""``torch.npu``: what ``torch.cuda`` is, for the stand-in."""

import contextlib

import torch

from torch_npu import _C, HAS_DEVICE
from torch_npu._calls import record

from . import amp
from .options import config, is_jit_compile_false, set_compile_mode
from .random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    set_rng_state,
    set_rng_state_all,
)

if HAS_DEVICE:
    Stream, Event = torch.Stream, torch.Event

_touched = set()


def is_available():
    return _C.device_count() > 0


def is_initialized():
    """Say whether anything but the number of devices was asked for."""
    return bool(_touched)


def init():
    _touched.add(_C.current_device())


def _is_in_bad_fork():
    return False


def device_count():
    return _C.device_count()


def current_device():
    init()
    return _C.current_device()


def set_device(device):
    init()
    record("set_device", _index_of(device))
    _C.set_device(_index_of(device))


def _index_of(device):
    if isinstance(device, int):
        return device
    index = torch.device(device).index if device is not None else None
    return _C.current_device() if index is None else index


@contextlib.contextmanager
def device(device):
    before = _C.current_device()
    _C.set_device(_index_of(device))
    try:
        yield
    finally:
        _C.set_device(before)


def synchronize(device=None):
    record("synchronize", _index_of(device))


def get_device_name(device=None):
    _index_of(device)
    return "Ascend910B-stand-in"


def get_soc_version():
    return 220


def is_bf16_supported():
    return True


def get_amp_supported_dtype():
    return [torch.float16, torch.bfloat16]


def current_stream(device=None):
    return torch.Stream(device=f"npu:{_index_of(device)}")


default_stream = current_stream


@contextlib.contextmanager
def stream(stream):
    yield stream


def set_stream(stream):
    del stream


def empty_cache():
    record("empty_cache")


def memory_allocated(device=None):
    return _C.memory_allocated(_index_of(device))


def max_memory_allocated(device=None):
    return _C.max_memory_allocated(_index_of(device))


memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated


def reset_peak_memory_stats(device=None):
    _C.reset_peak_memory_stats(_index_of(device))


def mem_get_info(device=None):
    total = 64 * 2**30
    return total - memory_allocated(device), total
