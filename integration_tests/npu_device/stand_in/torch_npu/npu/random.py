"""The generators of the devices, each with a state of its own."""

import torch

from torch_npu import _C


def _generator(device):
    index = device if isinstance(device, int) else getattr(_parse(device), "index", None)
    return _C.default_generator(_C.current_device() if index is None else index)


def _parse(device):
    # "npu" is no device of an older torch, where there is one generator anyhow.
    return None if str(device) == "npu" else torch.device(device)


def get_rng_state(device="npu"):
    return _generator(device).get_state()


def set_rng_state(new_state, device="npu"):
    _generator(device).set_state(new_state)


def get_rng_state_all():
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state_all(new_states):
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed):
    _generator("npu").manual_seed(int(seed))


def manual_seed_all(seed):
    for index in range(_C.device_count()):
        _generator(index).manual_seed(int(seed))


def seed():
    return _generator("npu").seed()


def initial_seed():
    return _generator("npu").initial_seed()
