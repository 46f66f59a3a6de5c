"""The sample that made a batch fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

__all__ = ["attach_sample", "failing_sample"]

_ATTRIBUTE = "_mm_runner_sample"


def failing_sample(error: BaseException) -> str | None:
    """Return the sample that made ``error``, such as ``"sample 17 of Points"``.

    It is known for errors of batches that a run draws from a loader built from a config. ``None``
    for any other error, and where reading the batch again does not fail.
    """
    return getattr(error, _ATTRIBUTE, None)


def attach_sample(error: Exception, dataset: Any, indices: Sequence[int]) -> Exception:
    """Find the sample that made a batch fail, by reading the batch again, and note it in the error.

    Args:
        error: Raised by the loader, in this process or in a worker.
        dataset: Of the loader.
        indices: Of the samples in the batch.

    Returns:
        ``error``, or the error in place of a ``StopIteration``, which would end the epoch.
    """
    sample = _find(dataset, indices)
    if isinstance(error, StopIteration) or isinstance(error.__cause__, StopIteration):
        error = RuntimeError(
            f"StopIteration was raised while it read {sample or 'a sample'}. A dataset with "
            "indices ends by its length: return a sample for each index below it, or raise "
            "another error."
        )
    with suppress(AttributeError):  # an error with __slots__
        setattr(error, _ATTRIBUTE, sample)
    return error


def _find(dataset: Any, indices: Sequence[int]) -> str | None:
    """Return the sample that cannot be read, or whose keys or shapes differ from most."""
    forms = []
    for index in indices:
        try:
            forms.append(_form(_read(dataset, index)))
        except Exception:  # noqa: BLE001 - it was raised before
            return f"sample {index} of {type(dataset).__name__}"
    usual = Counter(forms).most_common(1)[0][0] if forms else None
    odd = [index for index, form in zip(indices, forms, strict=True) if form != usual]
    return f"sample {odd[0]} of {type(dataset).__name__}" if odd else None


def _read(dataset: Any, index: int) -> Any:
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__([index])[0]
    return dataset[index]


def _form(value: Any) -> Any:
    """Return what the samples of a batch have in common: keys, numbers of parts, shapes."""
    if isinstance(value, Mapping):
        return tuple((str(key), _form(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_form, value))
    if isinstance(value, (int, float)):
        return "number"
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else tuple(shape)
