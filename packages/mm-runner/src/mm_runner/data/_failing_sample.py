"""Which sample it was that a dataset could not read."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from torch.utils.data import _utils

from mm_runner._error_text import text_of

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["failing_sample", "name_samples_in_worker"]

_FETCH_FILE: str = _utils.fetch.__file__
_SAID = re.compile(r"while it read (sample .+? of \w+)")


def failing_sample(error: BaseException) -> str | None:
    """Return what was being read when ``error`` was raised, as in ``"sample 17 of Points"``.

    In this process the frame of torch's fetcher knows it; of a worker's error, which is text by
    then, that text says it. ``None`` where it was no sample of a dataset with indices.
    """
    said = _SAID.search(text_of(error))
    return said[1] if said else _sample_in(error.__traceback__)


def _sample_in(trace: TracebackType | None) -> str | None:
    dataset: Any = None
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename == _FETCH_FILE:
            # Before Python 3.12 a comprehension has a frame of its own, inside that of ``fetch``.
            fetcher = frame.f_locals.get("self", None)
            dataset = getattr(fetcher, "dataset", dataset)
            known = [frame.f_locals["idx"]] if "idx" in frame.f_locals else _asked_of(trace.tb_next)
            if known and dataset is not None:
                return f"sample {known[0]!r} of {type(dataset).__name__}"
        trace = trace.tb_next
    return None


def _asked_of(trace: TracebackType | None) -> list[Any]:
    """Return the index that a dataset was asked for, if this is its frame.

    Since Python 3.12 the comprehension's own variable is gone once an error has left it.
    """
    if trace is None or trace.tb_frame.f_code.co_name != "__getitem__":
        return []
    names = trace.tb_frame.f_code.co_varnames[1 : trace.tb_frame.f_code.co_argcount]
    return [trace.tb_frame.f_locals[name] for name in names[:1] if name in trace.tb_frame.f_locals]


def name_samples_in_worker() -> None:
    """Let the errors that this worker sends home name the sample; calling it again is cheap.

    torch wraps an error in a text that says which worker it comes from. The name of the wrapper is
    looked up in torch's module of workers, which no other process sees.
    """
    module: Any = _utils.worker
    wrapper = module.ExceptionWrapper
    if isinstance(wrapper, _NamingWrapper):
        return
    module.ExceptionWrapper = _NamingWrapper(wrapper)


class _NamingWrapper:
    """What stands for torch's ``ExceptionWrapper``: a function that makes one.

    Args:
        wrapper: torch's own.
    """

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper

    def __call__(self, exc_info: Any = None, where: str = "in background") -> Any:
        exc_info = exc_info or sys.exc_info()
        sample = _sample_in(exc_info[2])
        return self._wrapper(exc_info, f"{where} while it read {sample}" if sample else where)
