"""Find out where data is, and move it, as deep as it is nested."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from mm_dist._backends import communication_device
from mm_dist._collectives._nested import fill_like
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
    """Return the device on which the group communicates what is on the CPU.

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
    if out is not None:
        _check_out(data, out)
    if isinstance(data, Tensor):
        moved = data.to(device)
        return moved if out is None else _fill(out, moved)
    if isinstance(data, Mapping):
        _check_items(data)
        targets = dict.fromkeys(data) if out is None else out
        cast = {k: cast_data_device(value, device, targets[k]) for k, value in data.items()}
        return fill_like(data, cast)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        items = list(data)
        _check_items(items)
        outs = [None] * len(items) if out is None else list(out)
        pairs = zip(items, outs, strict=True)
        return fill_like(data, [cast_data_device(item, device, target) for item, target in pairs])
    raise ArgumentTypeError(f"cast_data_device takes {_KINDS}; {type(data)} is in it.")


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


def _check_items(data: Any) -> None:
    if len(data) == 0:
        raise ConfigError("cast_data_device was given an empty container; there is no tensor.")


def _check_out(data: Any, out: Any) -> None:
    if isinstance(data, Tensor) and isinstance(out, Tensor):
        return
    if type(data) is not type(out):
        raise ArgumentTypeError(f"out is of {type(out)}, but data of {type(data)}; use the same.")
    if isinstance(out, (set, frozenset)):
        raise ArgumentTypeError("out cannot be or hold a set, whose order is not fixed.")
    if not isinstance(data, Collection):
        raise ArgumentTypeError(
            f"out needs data of known length, got {type(data)}; make it a list."
        )
    if len(data) != len(out):
        raise ConfigError(f"out has {len(out)} items, but data has {len(data)}; use as many.")
    if isinstance(data, Mapping) and set(data) != set(out):
        raise ConfigError(f"out has the keys {list(out)}, but data {list(data)}; use the same.")


def _fill(out: Tensor, moved: Tensor) -> Tensor:
    out.detach().copy_(moved)
    return moved
