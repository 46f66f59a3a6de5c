"""Whether an error says that memory is full."""

from __future__ import annotations

import errno
import re

from ._error_text import text_of

__all__ = ["is_out_of_memory"]

# What a device's runtime says where torch has no class of its own for it; in lower case.
_TEXTS = (
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "out of memory. tried to allocate",
    "std::bad_alloc",
    "invalid buffer size:",  # Metal's; of more than it could ever hold
)
# Others may write of memory too, about their own matters.
_DEVICES = re.compile(
    r"\b(cuda|hip|mps|xpu|npu|acl|nccl|hccl|mlu|musa)[^\n]{0,40}out of memory", re.IGNORECASE
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` says that memory is full, a device's or the host's; or its cause."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        # torch's for all devices (since 2.5), that for CUDA, torch_npu's.
        names = {kind.__name__ for kind in type(cause).__mro__}
        if isinstance(cause, MemoryError) or "OutOfMemoryError" in names:
            return True
        if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
            return True
        if isinstance(cause, RuntimeError) and _says_so(text_of(cause)):
            return True
        # ``raise ... from None`` says that what came before is no cause.
        cause = cause.__cause__ if cause.__suppress_context__ else cause.__context__
    return False


def _says_so(text: str) -> bool:
    return any(one in text.lower() for one in _TEXTS) or _DEVICES.search(text) is not None
