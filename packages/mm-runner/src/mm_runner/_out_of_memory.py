"""Whether an error says that memory is full."""

from __future__ import annotations

__all__ = ["is_out_of_memory"]

# What a device's runtime says where torch has no class of its own for it; in lower case.
_TEXTS = (
    "out of memory",
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
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
        if isinstance(cause, RuntimeError) and any(one in str(cause).lower() for one in _TEXTS):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
