"""Counting the operations that make the host wait for the device, by line of code."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from mm_runner._torch_private import dispatch_mode
from mm_runner.hooks import Hook

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Sync", "SyncCounter"]

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
    "aten::equal": "equal",
    "aten::allclose": "allclose",
    "aten::_linalg_check_errors": "a check of torch.linalg",
    # Only the overload with lengths as tensors.
    "aten._ctc_loss.Tensor": "ctc_loss with lengths as tensors",
}
_DispatchMode: Any = dispatch_mode()
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_MASKS = (torch.bool, torch.uint8)
_PACKAGES = ("torch", "mm_runner", "mm_dist", "mm_amp", "mm_compile", "mm_npu")
_SITES = ("site-packages", "dist-packages")


class Sync(NamedTuple):
    """An operation that waits, and the code that calls it."""

    what: str
    origin: str


class SyncCounter(_DispatchMode):  # type: ignore[misc]
    """Counts, while it is entered, the operations that make the host wait for the device.

    Args:
        counts: Where each is added.
        device_type: Of the run. For the CPU, on which nothing waits, the same operations are
            counted as stand-ins, without those of torch's optimizers; else only those on tensors
            of a device.
    """

    def __init__(self, counts: Counter[Sync], device_type: str) -> None:
        super().__init__()
        self._counts = counts
        self._counts_host = device_type == "cpu"
        self._thread = threading.get_ident()

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        what = self._waiting(func, args, kwargs)
        if what is not None:
            frames = [sys._getframe(1)]  # noqa: SLF001 - the documented name has no other
            if threading.get_ident() != self._thread:
                # Backward has its own thread, for which the one that called it waits.
                frames.append(sys._current_frames()[self._thread])  # noqa: SLF001
            origin = _origin_of(frames, skips_optimizers=self._counts_host)
            if origin is not None:
                self._counts[Sync(what, origin)] += 1
        return func(*args, **kwargs)

    # What torch asks a mode: compiled code stays compiled.

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def _waiting(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> str | None:
        name = getattr(getattr(func, "_schema", None), "name", "")
        if name in ("aten::_to_copy", "aten::copy_"):
            return _waiting_copy(name, args, kwargs)
        tensor = args[0] if args else None
        is_on_device = isinstance(tensor, Tensor) and tensor.device.type not in ("cpu", "meta")
        if not is_on_device and not (self._counts_host and isinstance(tensor, Tensor)):
            return None
        if name in _INDEXING:
            return "an index that is a mask" if _has_mask(name, args) else None
        if name == "aten::lift_fresh":
            return "a tensor made from numbers" if is_on_device else None
        if name == "aten::repeat_interleave":
            has_size = len(args) > 1 or kwargs.get("output_size") is not None
            return None if has_size else "repeat_interleave"
        return _WAITING.get(name) or _WAITING.get(str(func))


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


def _has_mask(name: str, args: Any) -> bool:
    masks = [one for one in args[1] if isinstance(one, Tensor) and one.dtype in _MASKS]
    # One number for all of one mask needs no count of what the mask selects.
    is_filled = name != "aten::index" and len(args[1]) == 1 and args[2].numel() == 1
    return bool(masks) and not is_filled


def _origin_of(frames: list[FrameType], *, skips_optimizers: bool) -> str | None:
    """Return who called, as ``file:line in function``, after the class if it is a hook.

    That is the first frame outside of torch, our packages and Python's library; where there is
    none, the first of our packages, or the innermost.

    Args:
        frames: The innermost frame, and that of the thread which waits for this one.
        skips_optimizers: Return ``None`` for torch's optimizers, which count steps on the host.
    """
    place = ours = None
    for start in frames:
        frame: FrameType | None = start
        while frame is not None and not _runs_steps(frame.f_code.co_filename):
            file = frame.f_code.co_filename
            if place is None and _is_users(file):
                place = _place(frame)
            if ours is None and any(_is_within(file, package) for package in _PACKAGES[1:]):
                ours = _place(frame)
            if place is None and skips_optimizers and _is_within(file, "torch", "optim"):
                return None
            owner = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames[:1] else None
            if isinstance(owner, Hook):
                name = type(owner).__name__
                return name if place is None else f"{name}, {place}"
            frame = frame.f_back
    return place or ours or _place(frames[0])


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{_short(code.co_filename)}:{frame.f_lineno} in {code.co_name}"


@cache
def _is_within(file: str, package: str, *parts: str) -> bool:
    home = os.path.dirname(sys.modules[package].__file__ or "") if package in sys.modules else ""  # noqa: PTH120
    return bool(home) and file.startswith(os.path.join(home, *parts, ""))  # noqa: PTH118


@cache
def _runs_steps(file: str) -> bool:
    """Return whether a file runs the steps: who called that is no answer."""
    return any(_is_within(file, "mm_runner", room) for room in ("loops", "runner"))


@cache
def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return file.startswith("<ipython-input")
    if any(_is_within(file, package) for package in _PACKAGES):
        return False
    is_library = file.startswith(sysconfig.get_path("stdlib"))
    return not is_library or any(site in file for site in _SITES)


@cache
def _short(file: str) -> str:
    """Return a path from its package, or from the current folder."""
    for package in _PACKAGES:
        if _is_within(file, package):
            home = os.path.dirname(sys.modules[package].__file__ or "")  # noqa: PTH120
            return os.path.relpath(file, os.path.dirname(home))  # noqa: PTH120
    for site in _SITES:
        _, found, rest = file.rpartition(f"{os.sep}{site}{os.sep}")
        if found:
            return rest
    below = os.path.relpath(file) if os.path.isabs(file) else file  # noqa: PTH117
    return file if below.startswith(os.pardir) else below
