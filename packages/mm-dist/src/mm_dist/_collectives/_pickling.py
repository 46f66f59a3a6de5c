"""Pickle objects, with tensors as large as they look.

torch pickles a tensor's whole storage: of a batch that was split into samples, every sample would
carry the batch. And it restores a tensor on the device it came from, which is another rank's.
"""

import ctypes
import pickle
from collections.abc import Callable
from typing import IO, Any

import torch
from torch import Tensor

from mm_dist._device_choice import current_device


class TensorPickler(pickle.Pickler):
    """A pickler that writes the elements of a plain tensor, instead of its whole storage.

    ``pickle.Unpickler`` restores them, on the current device of the tensor's device type.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)

    def reducer_override(self, obj: Any) -> Any:
        """Reduce plain tensors, and leave all else to Python."""
        return _reduce_tensor(obj) if type(obj) is Tensor and _is_plain(obj) else NotImplemented


def _is_plain(data: Tensor) -> bool:
    is_dense = data.layout is torch.strided and not data.is_quantized and not data.is_nested
    return is_dense and not data.is_meta and not data.__dict__


def _reduce_tensor(data: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    elements = data.detach().resolve_conj().resolve_neg().cpu().contiguous()
    arguments = (data.dtype, tuple(data.shape), data.device.type, data.requires_grad)
    return _restore_tensor, (_view_memory(elements), *arguments)


def _view_memory(data: Tensor) -> pickle.PickleBuffer | bytes:
    """Return a contiguous CPU tensor's memory without copying it; Tensor.numpy() needs NumPy."""
    num_bytes = data.numel() * data.element_size()
    if num_bytes == 0:
        return b""
    memory = (ctypes.c_char * num_bytes).from_address(data.data_ptr())
    # The array does not own the memory; the tensor has to live as long as it does.
    memory.owner = data  # type: ignore[attr-defined]
    return pickle.PickleBuffer(memory)


def _restore_tensor(
    memory: bytearray | bytes,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device_type: str,
    requires_grad: bool,  # noqa: FBT001 (pickle passes positions)
) -> Tensor:
    if not memory:
        data = torch.empty(shape, dtype=dtype)
    else:
        data = torch.frombuffer(memory, dtype=torch.uint8).view(dtype).reshape(shape)
    if device_type != "cpu":
        data = data.to(current_device(device_type))
    return data.requires_grad_(requires_grad)
