"""What a batch looked like: shapes and dtypes, no values."""

from __future__ import annotations

import dis
import os
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from torch import Tensor

__all__ = ["describe_batch", "last_batch"]

_NAMES = ("batch", "data_batch")
# Our functions are given the batch if there is one: their other variables may hold the one before.
_HOME = Path(__file__).parents[1]
_OURS = f"{_HOME}{os.sep}"
_LOOPS, _RUNNER = (f"{_HOME / name}{os.sep}" for name in ("loops", "runner"))
_CODE_UNIT = 2  # bytes
_MOST_ITEMS, _MOST_LEVELS = 20, 8


def last_batch(trace: TracebackType | None) -> Any:
    """Return the batch that the failing step was given, ``None`` if it was not in a step.

    It is looked for among the variables of the failed calls: keeping it aside would cost every
    step. A loop of the user's own is found if it calls the batch as ours do. What failed while the
    next batch was drawn, or between the steps, was given none.

    Args:
        trace: Of the exception.
    """
    found = None
    while trace is not None:
        frame, file = trace.tb_frame, _file(trace)
        is_drawing = _instruction(trace) == "FOR_ITER"
        # What a loop asks the run for is done between steps, or is given the batch itself.
        leaves_step = _file(trace.tb_next).startswith((_LOOPS, _RUNNER))
        names = set(_NAMES)
        if is_drawing or leaves_step or file.startswith(_OURS):
            names &= _arguments(frame)
        given = (frame.f_locals.get(name) for name in _NAMES if name in names)
        found = next((one for one in given if one is not None), found)
        if leaves_step and file.startswith(_LOOPS):
            found = None
        if is_drawing:
            return found
        trace = trace.tb_next
    return found


def _file(trace: TracebackType | None) -> str:
    return "" if trace is None else trace.tb_frame.f_code.co_filename


def _instruction(trace: TracebackType) -> str:
    """Return the name of the instruction that failed, empty where there is none.

    Python 3.12 points behind it where a generator fails under a ``for``, into the room of its
    cache, and 3.10 at the first part of a long one. The frames that C code adds to a trace have no
    instructions in 3.10.
    """
    code, place = trace.tb_frame.f_code.co_code, trace.tb_lasti
    while _name(code, place) == "CACHE":
        place -= _CODE_UNIT
    while _name(code, place) == "EXTENDED_ARG":
        place += _CODE_UNIT
    return _name(code, place)


def _name(code: bytes, place: int) -> str:
    return dis.opname[code[place]] if 0 <= place < len(code) else ""


def _arguments(frame: FrameType) -> set[str]:
    code = frame.f_code
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def describe_batch(value: Any, level: int = 0) -> Any:
    """Return the structure of ``value`` in primitives.

    Example:
        >>> describe_batch({"x": torch.ones(2, 3), "names": ["a"]})
        {'x': {'shape': [2, 3], 'dtype': 'float32', 'device': 'cpu'}, 'names': ['str']}
    """
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"shape": list(value.shape), "dtype": dtype, "device": str(value.device)}
    if level == _MOST_LEVELS or not isinstance(value, (Mapping, list, tuple)):
        shape = getattr(value, "shape", None)
        return type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
    if isinstance(value, Mapping):
        return {str(key): describe_batch(item, level + 1) for key, item in value.items()}
    items = [describe_batch(item, level + 1) for item in value[:_MOST_ITEMS]]
    left = len(value) - len(items)
    return [*items, f"... {left} more"] if left else items
