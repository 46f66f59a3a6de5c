"""Detection of out-of-memory errors."""

from __future__ import annotations

import errno
import re

from mm_runner._error_text import text_of

__all__ = ["is_out_of_memory"]

# Messages of allocators and libraries for which torch has no exception class.
_FULL = re.compile(
    r"\b(cuda|hip|mps|xpu|npu|acl|nccl|hccl|mlu|musa)[^\n]{0,40}out of memory"
    r"|out of memory\. tried to allocate|alloc(ation)?_failed|error_out_of_\w+_memory"
    r"|can(no|')t allocate memory|not enough memory|bad_alloc|invalid buffer size",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error``, or its cause, says that the memory is full."""
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
        if isinstance(cause, RuntimeError) and _FULL.search(text_of(cause)):
            return True
        cause = cause.__cause__ if cause.__suppress_context__ else cause.__context__
    return False
