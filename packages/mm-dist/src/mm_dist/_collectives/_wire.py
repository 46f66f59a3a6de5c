"""Bring tensors into the form in which a group can communicate them, and back."""

from typing import Any

import torch
from torch import Tensor

from mm_dist._backends import communication_device
from mm_dist._collectives._state import GroupState
from mm_dist._errors import ArgumentTypeError

_increment_version = getattr(torch.autograd.graph, "increment_version", None)  # torch >= 2.1


def check_tensor(data: object, function: str, hint: str = "") -> None:
    """Refuse what is no dense tensor.

    Raises:
        ArgumentTypeError: If it is none.
    """
    if not isinstance(data, Tensor):
        raise ArgumentTypeError(f"{function} takes a tensor, got {type(data)}.{hint}")
    if hasattr(data, "full_tensor"):  # torch's DTensor, which is expensive to import
        raise ArgumentTypeError(
            f"{function} takes tensors that a rank has for itself, got one that is sharded over a "
            "device mesh; call full_tensor() for all of it, or to_local() for this rank's part."
        )
    if data.layout is not torch.strided:
        raise ArgumentTypeError(
            f"{function} takes dense tensors, got one of layout {data.layout}; call to_dense()."
        )


def place_on_wire(data: Tensor, group: Any, state: GroupState) -> Tensor:
    """Return ``data`` without gradient, contiguous, on the device that the group serves.

    The result shares memory with ``data`` where nothing had to change.
    """
    placed = data.detach() if data.requires_grad else data
    # Asking the group takes as long as a small collective, so the answer is kept; but not that it
    # is the current device of an accelerator, which can change.
    if data.device not in state.served:
        device = communication_device(data.device, group)
        if device == data.device:
            state.served.add(device)
        placed = placed.to(device)
    if placed.is_complex() or placed.is_neg():
        placed = placed.resolve_conj().resolve_neg()
    return placed.contiguous()


def write_back(data: Tensor, received: Tensor) -> None:
    """Copy a result into ``data``, into its dtype and device, unless it shares its memory."""
    if received is data or received.numel() == 0:
        return
    is_same_memory = received.data_ptr() == data.data_ptr() and received.device == data.device
    if not is_same_memory or received.dtype != data.dtype:
        data.detach().copy_(received)


def note_change(data: Tensor) -> None:
    """Tell autograd that a backend has written to a tensor's memory, which it does not see.

    A backward pass that needs the former values then fails, instead of using the new ones.
    """
    if data.is_inference():  # nobody keeps it for a backward pass
        return
    if _increment_version is not None:
        _increment_version(data)
    else:
        data.detach().reshape(-1)[:0].zero_()


def as_bytes(data: Tensor) -> Tensor:
    """Return a contiguous tensor's memory as ``uint8``, one-dimensional."""
    # Not reshape: it keeps the stride of a tensor of one element, which then has no bytes' view.
    return data.as_strided((data.numel(),), (1,)).view(torch.uint8)
