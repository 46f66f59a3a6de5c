"""Devices of nested data: find them, move to them."""

from typing import Any

import torch
from torch import Tensor

from mm_dist._backends import communication_device
from mm_dist._collectives._tensors import flatten, rebuild
from mm_dist._errors import ConfigError
from mm_dist._state import is_distributed


def get_data_device(data: Any) -> torch.device:
    """Return the device that all tensors in ``data`` are on.

    Args:
        data: A tensor, or nested dicts, lists and tuples of tensors.

    Raises:
        ArgumentTypeError: If it holds something else than dense tensors.
        ConfigError: If there is no tensor in it, or they are on different devices.
    """
    devices = list(dict.fromkeys(each.device for each in _find(data, "get_data_device").values()))
    if len(devices) > 1:
        raise ConfigError(
            f"get_data_device was asked about tensors on {', '.join(map(str, devices))}; move "
            "them to one device first, with cast_data_device."
        )
    return devices[0]


def get_comm_device(group: Any = None) -> torch.device:
    """Return the device on which the group communicates CPU data.

    Args:
        group: Ranks that communicate. Defaults to all.

    Returns:
        ``cpu`` for gloo, and without a process group; the current device for NCCL and the like.
    """
    return communication_device(group=group) if is_distributed() else torch.device("cpu")


def cast_data_device(data: Any, device: torch.device | str, out: Any = None) -> Any:
    """Move all tensors in ``data`` to a device.

    Args:
        data: A tensor, or nested dicts, lists and tuples of tensors.
        device: Where they should be.
        out: With the same keys and lengths as ``data``; its tensors receive the values too.

    Returns:
        Containers of the same kinds, with tensors on ``device``. A tensor that is there already is
        not copied.

    Raises:
        ArgumentTypeError: If ``data`` holds something else than dense tensors.
        ConfigError: If there is no tensor in it, or ``out`` has other keys or lengths.

    Example:
        >>> cast_data_device({"loss": torch.ones(1)}, "cpu")
        {'loss': tensor([1.])}
    """
    tensors = _find(data, "cast_data_device")
    targets = {} if out is None else flatten(out, "cast_data_device")
    if out is not None and targets.keys() != tensors.keys():
        raise ConfigError(f"out has {list(targets)}, but data has {list(tensors)}; use the same.")
    moved = {path: tensor.to(device) for path, tensor in tensors.items()}
    for path, target in targets.items():
        target.detach().copy_(moved[path])
    return rebuild(data, iter(moved.values()))


def _find(data: Any, function: str) -> dict[str, Tensor]:
    tensors = flatten(data, function)
    if not tensors:
        raise ConfigError(f"{function} was given data that is empty; there is no tensor.")
    return tensors
