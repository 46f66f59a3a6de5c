"""Devices of nested data: find them, move to them."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from mm_dist._backends import communication_device
from mm_dist._collectives._tensors import fill_like
from mm_dist._errors import ArgumentTypeError, ConfigError
from mm_dist._process_group import is_distributed

_KINDS = "a tensor, or nested dicts, lists, tuples and sets of tensors"


def get_data_device(data: Any) -> torch.device:
    """Return the device that all tensors in ``data`` are on.

    Args:
        data: A tensor, or nested dicts and iterables of tensors.

    Raises:
        ArgumentTypeError: If something else is in it.
        ConfigError: If there is no tensor in it, or they are on different devices.

    Example:
        >>> get_data_device({"loss": [torch.ones(1)]})
        device(type='cpu')
    """
    devices = _find_devices(data)
    if not devices:
        raise ConfigError("get_data_device was asked about data that is empty; there is no tensor.")
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

    Example:
        >>> get_comm_device()
        device(type='cpu')
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
        ArgumentTypeError: If something else is in ``data``, if ``out`` is of another kind, or if
            it is or holds a set, whose order is not fixed.
        ConfigError: If a container is empty, or ``out`` has another length or other keys.

    Example:
        >>> cast_data_device({"loss": torch.ones(1)}, "cpu")
        {'loss': tensor([1.])}
    """
    if isinstance(data, Tensor):
        moved = data.to(device)
        if out is not None:
            _check_out(data, out, isinstance(out, Tensor))
            out.detach().copy_(moved)
        return moved
    if isinstance(data, (str, bytes)) or not isinstance(data, Iterable):
        raise ArgumentTypeError(f"cast_data_device takes {_KINDS}; {type(data)} is in it.")
    if out is not None:
        is_ordered = not isinstance(out, (set, frozenset))
        _check_out(data, out, type(data) is type(out) and is_ordered)
    items = list(data.items() if isinstance(data, Mapping) else enumerate(data))
    if not items:
        raise ConfigError("cast_data_device was given an empty container; there is no tensor.")
    keys = [key for key, _ in items]
    targets = dict.fromkeys(keys) if out is None else _by_key(out)
    if set(targets) != set(keys):
        raise ConfigError(f"out has items {list(targets)}, but data {keys}; use the same.")
    cast = {key: cast_data_device(value, device, targets[key]) for key, value in items}
    return fill_like(data, cast if isinstance(data, Mapping) else cast.values())


def _find_devices(data: Any) -> list[torch.device]:
    """Return the devices of all tensors, each once, in order."""
    if isinstance(data, Tensor):
        return [data.device]
    if isinstance(data, Mapping):
        values: Iterable[Any] = data.values()
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        values = data
    else:
        raise ArgumentTypeError(f"get_data_device takes {_KINDS}; {type(data)} is in it.")
    return list(dict.fromkeys(device for value in values for device in _find_devices(value)))


def _by_key(out: Any) -> dict[Any, Any]:
    return dict(out if isinstance(out, Mapping) else enumerate(out))


def _check_out(data: Any, out: Any, is_alike: bool) -> None:  # noqa: FBT001
    if not is_alike:
        raise ArgumentTypeError(
            f"out is of {type(out)}, but data of {type(data)}; use the same, and no set, whose "
            "order is not fixed."
        )
