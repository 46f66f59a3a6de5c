"""Detection of out-of-memory errors."""

from __future__ import annotations

import errno
import re

from ._error_text import text_of

__all__ = ["is_out_of_memory"]

# What a device's runtime says where torch has no class of its own for it; in lower case.
_TEXTS = (
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    "_status_alloc_failed",  # of cuBLAS, cuDNN, cuSOLVER, cuSPARSE and their like
    "fft_alloc_failed",
    "_device_allocation_failed",  # cuDNN's since version 9, as the next
    "_host_allocation_failed",
    "_error_out_of_device_memory",  # of Level Zero and Unified Runtime, as the next
    "_error_out_of_host_memory",
    "cannot allocate memory (12)",  # the system's, in torch's words
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
        # ``raise ... from None`` excludes the error before.
        cause = cause.__cause__ if cause.__suppress_context__ else cause.__context__
    return False


def _says_so(text: str) -> bool:
    return any(one in text.lower() for one in _TEXTS) or _DEVICES.search(text) is not None
