"""Detection of out-of-memory errors."""

from __future__ import annotations

import errno
import re

from mm_runner.errors import text_of

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
    cause: BaseException | None = error
    for _ in range(10):  # a chain may be a circle
        if cause is None:
            break
        # torch's for all devices (since 2.5), that for CUDA, torch_npu's.
        names = {kind.__name__ for kind in type(cause).__mro__}
        is_full = isinstance(cause, OSError) and cause.errno == errno.ENOMEM
        is_said = isinstance(cause, RuntimeError) and _FULL.search(text_of(cause)) is not None
        if is_full or is_said or isinstance(cause, MemoryError) or "OutOfMemoryError" in names:
            return True
        cause = cause.__cause__ if cause.__suppress_context__ else cause.__context__
    return False
