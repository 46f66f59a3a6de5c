"""Bring tensors into the form in which a group can communicate them, and back."""

from typing import Any

import torch
from torch import Tensor

from mm_dist._backends import communication_device

# gloo of older torch knows neither; their bytes travel as well as they do.
_BYTEWISE = (torch.bool, torch.bfloat16)


def place_on_wire(data: Tensor, group: Any) -> Tensor:
    """Return ``data`` without gradient, contiguous, on the device that the group serves.

    The result shares memory with ``data`` where nothing had to change.
    """
    return data.detach().to(communication_device(data.device, group)).contiguous()


def write_back(data: Tensor, received: Tensor) -> None:
    """Copy a result into ``data``, into its dtype and device, unless it shares its memory."""
    if received.data_ptr() != data.data_ptr() or received.dtype != data.dtype:
        data.detach().copy_(received)


def pack_for_copy(data: Tensor) -> Tensor:
    """Return a tensor that every backend can copy: bytes, for dtypes that some do not know."""
    return data.reshape(-1).view(torch.uint8) if data.dtype in _BYTEWISE else data


def unpack_copy(packed: Tensor, like: Tensor) -> Tensor:
    """Undo ``pack_for_copy``; dtype, shape and device are those of ``like``."""
    if packed.dtype != like.dtype:
        packed = packed.view(like.dtype)
    return packed.reshape(like.shape).to(like.device)
