"""Reduction operations: valid dtypes, and the dtype in which a backend reduces each."""

from functools import lru_cache
from typing import Any

import torch

from mm_dist._errors import ConfigError
from mm_dist._suggestion import suggest_name

OPERATIONS = ("sum", "product", "min", "max", "band", "bor", "bxor", "mean", "avg")
BITWISE = ("band", "bor", "bxor")
# A bool travels as 0 or 1, which every backend can reduce: 'or' is max, 'and' is min.
_OF_BOOLS = {
    "sum": "max",
    "max": "max",
    "bor": "max",
    "product": "min",
    "min": "min",
    "band": "min",
    "bxor": "bxor",
}
_INTEGERS_OF_BACKENDS = (torch.int8, torch.int32, torch.int64)
_FLOATS_OF_BACKENDS = (torch.float32, torch.float64)
_HALVES = (torch.float16, torch.bfloat16)
_UINT64 = getattr(torch, "uint64", None)


def check_operation(op: Any) -> None:
    """Check that an operation exists, for any dtype.

    Raises:
        ConfigError: If there is none.
    """
    if not isinstance(op, str) or op.lower() not in OPERATIONS:
        raise ConfigError(
            f"op={op!r} is not known; there are: {', '.join(OPERATIONS)}."
            f"{suggest_name(str(op), OPERATIONS)}"
        )


def read_operation(op: str, dtype: torch.dtype) -> str:
    """Return the operation in lower case.

    Raises:
        ConfigError: If it is not known, or has no meaning for the dtype.
    """
    check_operation(op)  # before it is looked up: it may have no hash
    return _find_operation(op, dtype)


@lru_cache(maxsize=512)
def _find_operation(op: str, dtype: torch.dtype) -> str:
    # torch's name for the mean, which only NCCL computes.
    operation = "mean" if op.lower() == "avg" else op.lower()
    if not _has_meaning(operation, dtype):
        raise ConfigError(f"op={op!r} has no meaning for {dtype}; convert the tensor first.")
    return operation


def _has_meaning(operation: str, dtype: torch.dtype) -> bool:
    if dtype == torch.bool:
        return operation in _OF_BOOLS
    if dtype.is_complex:
        return operation in ("sum", "mean")
    if dtype == _UINT64 and operation in ("min", "max", "mean"):
        return False  # It travels as int64, whose order is another.
    return not (dtype.is_floating_point and operation in BITWISE)


@lru_cache(maxsize=512)
def form_on_wire(
    operation: str, dtype: torch.dtype, device: torch.device
) -> tuple[str, torch.dtype]:
    """Return the operation and the dtype in which a backend reduces a real dtype exactly.

    The caller converts the result back: integers wrap around as in their own dtype, floats of low
    precision are rounded once. Doubles are rounded to float32 on NPUs.

    Args:
        operation: As from ``read_operation``; ``mean`` becomes ``sum``.
        dtype: Of the tensor; not complex.
        device: That the backend communicates on.
    """
    if dtype == torch.bool:
        return _OF_BOOLS[operation], torch.int32
    is_mean = operation == "mean"
    on_wire = "sum" if is_mean else operation
    if dtype.is_floating_point:
        if dtype == torch.float64 and device.type == "npu":  # HCCL has no doubles
            return on_wire, torch.float32
        # A sum in float16 can overflow although the mean does not.
        is_enough = dtype in _HALVES and device.type != "cpu" and not is_mean
        return on_wire, dtype if is_enough or dtype in _FLOATS_OF_BACKENDS else torch.float32
    if is_mean:
        return on_wire, torch.int64
    if dtype in _INTEGERS_OF_BACKENDS or (dtype == torch.uint8 and device.type in ("cpu", "cuda")):
        return on_wire, dtype
    return on_wire, torch.int32 if torch.iinfo(dtype).bits < 32 else torch.int64
