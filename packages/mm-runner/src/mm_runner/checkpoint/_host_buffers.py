"""Copies of tensors on the host, in memory that is kept from one checkpoint to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ._content import plain

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HostBuffers"]


class HostBuffers:
    """Takes a copy of a checkpoint that stays as it is while training goes on.

    New memory has to be given to the process page by page, which takes several times as long as the
    copy itself; so the first copy's memory is kept, as much as one checkpoint needs. For an
    accelerator it is pinned, and the host does not wait for the transfer: later work on the device
    comes after it anyway, and :meth:`wait` is for whoever reads the copy.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._copied: dict[tuple[Any, ...], Tensor] = {}
        self._used: set[str] = set()
        self._transfers: dict[torch.device, Any] = {}

    def copy(self, checkpoint: Any) -> Any:
        """Return ``checkpoint`` with every tensor copied; the copy before it is overwritten.

        Raises:
            CheckpointError: If something is neither a tensor nor a primitive.
        """
        self._copied, self._used = {}, set()
        copied = plain(checkpoint, to_host=self._copy_tensor)
        for path in self._buffers.keys() - self._used:  # of a state that has become smaller
            del self._buffers[path]
        self._copied = {}
        self._transfers = {device: _mark_stream(device) for device in self._transfers}
        return copied

    def wait(self) -> None:
        """Wait for the transfers of the newest copy."""
        for event in self._transfers.values():
            event.synchronize()
        self._transfers = {}

    def _copy_tensor(self, value: Tensor, path: str) -> Tensor:
        if value.layout is not torch.strided or value.is_quantized:
            return value.cpu().clone()
        # Tied weights are one tensor under two names; in the file they stay one.
        key = (value.data_ptr(), value.device, value.dtype, value.shape, value.stride())
        known = self._copied.get(key) if value.numel() else None
        if known is not None:
            return known
        while path in self._used:  # the keys 1 and "1" of one dict
            path += "'"
        self._used.add(path)
        buffer = self._buffers.get(path)
        if buffer is None or not _fits(buffer, value):
            buffer = self._buffers[path] = _allocate(value)
        overlaps = _is_elsewhere(value) and buffer.is_pinned()
        buffer.copy_(value, non_blocking=overlaps)
        if overlaps:
            self._transfers[value.device] = None
        self._copied[key] = buffer
        return buffer


def _fits(buffer: Tensor, value: Tensor) -> bool:
    same_form = buffer.shape == value.shape and buffer.dtype == value.dtype
    return same_form and (buffer.stride() == value.stride() or not _is_dense(value))


def _is_dense(value: Tensor) -> bool:
    """Tell whether ``empty_like`` gives a tensor of the same strides."""
    return torch.empty_like(value, device="meta").stride() == value.stride()


def _allocate(value: Tensor) -> Tensor:
    """Return an uninitialised tensor on the host, of the same shape, type and memory format."""
    if _is_elsewhere(value) and hasattr(_device_module(value.device), "Event"):
        try:
            return torch.empty_like(value, device="cpu", pin_memory=True)
        except RuntimeError:  # a device whose memory the host cannot pin
            pass
    return torch.empty_like(value, device="cpu")


def _is_elsewhere(value: Tensor) -> bool:
    return value.device.type != "cpu"


def _mark_stream(device: torch.device) -> Any:
    module = _device_module(device)
    event = module.Event()
    event.record(module.current_stream(device))
    return event


def _device_module(device: torch.device) -> Any:
    return getattr(torch, device.type, None)
