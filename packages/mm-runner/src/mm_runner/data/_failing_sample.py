"""Which sample it was that a dataset could not read."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import _utils

from mm_runner._error_text import text_of

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["failing_sample", "name_samples_in_worker", "without_stop_iteration"]

_FETCH_FILE: str = _utils.fetch.__file__
_SAID = re.compile(r"while it read (sample .+? of \w+)")


def failing_sample(error: BaseException) -> str | None:
    """Return what was being read when ``error`` was raised, as in ``"sample 17 of Points"``.

    In this process the frame of torch's fetcher knows it; of a worker's error, which is text by
    then, that text says it. Where samples could not be collated, it is the one whose keys or shapes
    differ from most. ``None`` where it was no sample of a dataset with indices.
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
            known = known or _unlike_others(frame.f_locals)
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


def _unlike_others(fetched: Mapping[str, Any]) -> list[Any]:
    """Return the index of a sample that does not fit the others of its batch.

    Args:
        fetched: Local variables of torch's fetcher, which has read the batch.
    """
    samples, indices = fetched.get("data"), fetched.get("possibly_batched_index")
    if not (isinstance(samples, list) and isinstance(indices, Sequence)):
        return []
    forms = [_form(sample) for sample in samples]
    usual = Counter(forms).most_common(1)[0][0] if forms else None
    odd = (index for index, form in zip(indices, forms, strict=False) if form != usual)
    return [index for index in [next(odd, None)] if index is not None]


def _form(value: Any) -> Any:
    """Return what samples of one batch have in common: keys, numbers of parts, shapes."""
    if isinstance(value, Mapping):
        return tuple((str(key), _form(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_form, value))
    shape = getattr(value, "shape", None)
    is_number = isinstance(value, (int, float))
    return "number" if is_number else type(value).__name__ if shape is None else tuple(shape)


def without_stop_iteration(error: StopIteration) -> RuntimeError:
    """Return the error in place of a dataset's StopIteration, which would end the epoch."""
    sample = _sample_in(error.__traceback__)
    return RuntimeError(
        f"StopIteration was raised while it read {sample or 'a sample'}. A dataset with indices "
        "ends by its length: return a sample for each index below it, or raise another error."
    )


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
        if isinstance(exc_info[1], StopIteration):
            raised = without_stop_iteration(exc_info[1])
            exc_info = (type(raised), raised, exc_info[2])
        sample = _sample_in(exc_info[2])
        return self._wrapper(exc_info, f"{where} while it read {sample}" if sample else where)
