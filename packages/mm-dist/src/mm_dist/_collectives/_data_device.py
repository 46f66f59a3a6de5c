"""Devices of nested data: find them, move to them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from mm_dist._backends import communication_device
from mm_dist._collectives._tensors import fill_like
from mm_dist._errors import ArgumentTypeError, ConfigError
from mm_dist._state import is_distributed


def get_data_device(data: Any) -> torch.device:
    """Return the device that all tensors in ``data`` are on.

    Args:
        data: A tensor, or nested dicts and iterables of tensors.

    Raises:
        ArgumentTypeError: If something else is in it.
        ConfigError: If there is no tensor in it, or they are on different devices.
    """
    devices = list(dict.fromkeys(_find_devices(data)))
    if len(devices) != 1:
        raise ConfigError(
            f"get_data_device was asked about tensors on {', '.join(map(str, devices))}; move "
            "them to one device first, with cast_data_device."
            if devices
            else "get_data_device was asked about data that is empty; there is no tensor."
        )
    return devices[0]


def _find_devices(data: Any) -> Iterator[torch.device]:
    if isinstance(data, Tensor):
        yield data.device
    else:
        for _, value in _items(data, "get_data_device"):
            yield from _find_devices(value)


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
        data: A tensor, or nested dicts, lists, tuples and sets of tensors.
        device: Where they should be.
        out: Of the same kinds and sizes as ``data``; its tensors receive the values too.

    Returns:
        Containers of the same kinds, with tensors on ``device``. A tensor that is there already is
        not copied.

    Raises:
        ArgumentTypeError: If something else is in ``data``, or if ``out`` is of another kind or a
            set, whose order is not fixed.
        ConfigError: If a container is empty, or ``out`` has another length or other keys.

    Example:
        >>> cast_data_device({"loss": torch.ones(1)}, "cpu")
        {'loss': tensor([1.])}
    """
    is_alike = isinstance(out, Tensor) if isinstance(data, Tensor) else type(data) is type(out)
    if out is not None and (not is_alike or isinstance(out, (set, frozenset))):
        raise ArgumentTypeError(
            f"out is of {type(out)}, but data of {type(data)}; use the same, and no set, whose "
            "order is not fixed."
        )
    if isinstance(data, Tensor):
        moved = data.to(device)
        if out is not None:
            out.detach().copy_(moved)
        return moved
    items = dict(_items(data, "cast_data_device"))
    if not items:
        raise ConfigError("cast_data_device was given an empty container; there is no tensor.")
    targets = dict.fromkeys(items) if out is None else dict(_items(out, "cast_data_device"))
    if targets.keys() != items.keys():
        raise ConfigError(f"out has items {list(targets)}, but data {list(items)}; use the same.")
    cast = {key: cast_data_device(value, device, targets[key]) for key, value in items.items()}
    return fill_like(data, cast if isinstance(data, Mapping) else cast.values())


def _items(data: Any, function: str) -> Iterable[tuple[Any, Any]]:
    if isinstance(data, (str, bytes)) or not isinstance(data, Iterable):
        raise ArgumentTypeError(
            f"{function} takes a tensor, or nested dicts, lists, tuples and sets of tensors; "
            f"{type(data)} is in it."
        )
    return data.items() if isinstance(data, Mapping) else enumerate(data)
