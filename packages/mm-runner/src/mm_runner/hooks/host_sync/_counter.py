"""Counting the operations that make the host wait for the device."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from ._origin import is_of_optimizer, origin_of

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Sync", "SyncCounter", "leaves_compiled_code_alone"]

# Their result depends on values that only the device knows.
_WAITING = {
    "aten::_local_scalar_dense": "item, float, int or bool",
    "aten::nonzero": "nonzero",
    "aten::masked_select": "masked_select",
    "aten::_unique": "unique",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique_consecutive",
    "aten::bincount": "bincount",
    "aten::repeat_interleave": "repeat_interleave",
    "aten::equal": "equal",
    "aten::allclose": "allclose",
    "aten::_linalg_check_errors": "a check of torch.linalg",
    # Of one kind alone, that with lengths as tensors.
    "aten._ctc_loss.Tensor": "ctc_loss with lengths as tensors",
}
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_MASKS = (torch.bool, torch.uint8)


def leaves_compiled_code_alone() -> bool:
    """Tell whether this torch runs compiled code while a :class:`SyncCounter` is entered.

    An older one runs such code uncompiled then, some of it for good.
    """
    names = ("is_infra_mode", "ignore_compile_internals")
    return all(hasattr(TorchDispatchMode, name) for name in names)


class Sync(NamedTuple):
    """A kind of waiting, and where it comes from."""

    what: str
    origin: str


class SyncCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, while it is entered, what makes the host wait for the device.

    Args:
        counts: Where each is added.
        device_type: Of the run. For the CPU, on which nobody waits, the same operations are
            counted as stand-ins; else only those on tensors of a device.
    """

    def __init__(self, counts: Counter[Sync], device_type: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts = counts
        self._counts_host = device_type == "cpu"
        self._thread = threading.get_ident()

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        what = self._what_waits(func, args, kwargs)
        if what is not None:
            frame = sys._getframe(1)  # noqa: SLF001 - the documented name has no other
            # torch's optimizers count steps on the host, wherever the parameters are.
            if not (self._counts_host and is_of_optimizer(frame)):
                self._counts[Sync(what, self._origin(frame))] += 1
        return func(*args, **kwargs)

    # What torch asks a mode: compiled code is not this one's business, and stays compiled.

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def _what_waits(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> str | None:
        name = getattr(getattr(func, "_schema", None), "name", "")
        if name in ("aten::_to_copy", "aten::copy_"):
            return _waiting_copy(name, args, kwargs)
        tensor = args[0] if args else None
        if not isinstance(tensor, Tensor) or not (self._counts_host or _is_on_device(tensor)):
            return None
        if name == "aten::repeat_interleave" and _is_sized(args, kwargs):
            return None
        if name in _INDEXING and _has_mask(name, args):
            return "an index that is a mask"
        if name == "aten::lift_fresh" and _is_on_device(tensor):
            return "a tensor made from numbers"
        return _WAITING.get(name) or _WAITING.get(str(func))

    def _origin(self, frame: FrameType) -> str:
        if threading.get_ident() == self._thread:
            return origin_of(frame)
        # Backward runs in a thread of its own, for which the one that called it waits.
        return origin_of(frame, behind=sys._current_frames().get(self._thread))  # noqa: SLF001


def _waiting_copy(name: str, args: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Name a copy between host and device that the host waits for, if it is one."""
    if name == "aten::copy_":
        target, source = args[0].device.type, args[1].device.type
        is_free = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    else:
        wanted = kwargs.get("device")
        source = args[0].device.type
        target = source if wanted is None else torch.device(wanted).type
        is_free = kwargs.get("non_blocking", False)
    if is_free or source == target or "meta" in (source, target):
        return None
    return "copy to the host" if target == "cpu" else "copy to the device"


def _is_sized(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether the size of what is repeated is given, and not read from the device."""
    return len(args) > 1 or kwargs.get("output_size") is not None


def _has_mask(name: str, args: Any) -> bool:
    masks = [one for one in args[1] if isinstance(one, Tensor) and one.dtype in _MASKS]
    # One number for all of one mask needs no count of what the mask selects.
    is_filled = name != "aten::index" and len(args[1]) == 1 and args[2].numel() == 1
    return bool(masks) and not is_filled


def _is_on_device(tensor: Tensor) -> bool:
    return tensor.device.type not in ("cpu", "meta")
