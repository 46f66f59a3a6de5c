"""Cut a batch, whatever it is made of, into parts of some samples each."""

import copy
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from ._checks import check_count
from ._errors import ConfigError, ConfigTypeError

_Path = tuple[Any, ...]


class BatchSplitter:
    """Cuts batches of one kind: dicts, tuples, lists, dataclasses, in any depth, along dim 0.

    Tensors (and arrays) are cut, except those without dimensions or with one entry for the whole
    batch. A list or tuple with one entry per sample (file names, boxes, dicts of annotations) is
    cut; another is taken to hold parts of the batch. What is no tensor and no container goes to
    every part as it is.

    Where a list could be read both ways (two tensors in a list, two samples), it is read as it was
    in an earlier batch; else, as holding parts of the batch.
    """

    def __init__(self) -> None:
        self._is_per_sample: dict[_Path, bool] = {}

    def __call__(self, batch: Any, size: int | None) -> list[tuple[Any, int]]:
        """Return the parts, each with its number of samples.

        Args:
            batch: What a loader gives.
            size: Samples in a part at most; parts are as equal as can be. ``None``: all of them.

        Raises:
            ConfigError: If it has no samples, or tensors disagree on how many.
        """
        num = count_samples(batch)
        self._cut(batch, slice(0, num), num, ())  # also to learn, and to check a batch left whole
        if size is None or size >= num:
            return [(batch, num)]
        return [
            (self._cut(batch, part, num, ()), part.stop - part.start)
            for part in _equal_slices(num, math.ceil(num / size))
        ]

    def _cut(self, value: Any, part: slice, num: int, path: _Path) -> Any:
        if _is_array(value):
            return _cut_array(value, part, num, path)
        if isinstance(value, Mapping):
            items = {key: self._cut(item, part, num, (*path, key)) for key, item in value.items()}
            return _like_mapping(value, items)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {
                field.name: self._cut(getattr(value, field.name), part, num, (*path, field.name))
                for field in dataclasses.fields(value)
                if field.init
            }
            return dataclasses.replace(value, **fields)
        if _is_sequence(value):
            return self._cut_sequence(value, part, num, path)
        return value

    def _cut_sequence(self, value: Sequence[Any], part: slice, num: int, path: _Path) -> Any:
        if self._has_one_per_sample(value, num, path):
            return _like_sequence(value, list(value[part]))
        items = [self._cut(item, part, num, (*path, index)) for index, item in enumerate(value)]
        return _like_sequence(value, items)

    def _has_one_per_sample(self, value: Sequence[Any], num: int, path: _Path) -> bool:
        may_be_samples = len(value) == num and not hasattr(value, "_fields")
        may_be_parts = all(_could_be_cut(item, num) for item in value)
        if may_be_samples and may_be_parts:
            return self._is_per_sample.get(path, _are_alike(value) and not path)
        if may_be_samples or may_be_parts:
            self._is_per_sample[path] = may_be_samples
        return may_be_samples


def _equal_slices(num: int, num_parts: int) -> list[slice]:
    # A short last part would be the noisiest, and batch norm fails on a single sample.
    edges = [num * index // num_parts for index in range(num_parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def check_parts(parts: Iterable[Any]) -> list[tuple[Any, int]]:
    """Return, as a list, what a split function gave.

    Raises:
        ConfigError: If that is not pairs of a part and its number of samples, at least one in all.
    """
    listed = list(parts)
    for pair in listed:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise ConfigTypeError(
                f"split returned a {type(pair).__name__} among its parts; each must be a pair "
                "(part, number of samples)."
            )
        check_count("the number of samples that split returned", pair[1])
    if not sum(num for _, num in listed):
        raise ConfigError("split returned no samples; each batch must have at least one.")
    return listed


def count_samples(batch: Any) -> int:
    """Return how many samples ``batch`` has.

    Tensors that are not inside a list say so; else lists of things that are no tensors, by their
    lengths; else lists of tensors, by dim 0 of these, or by their lengths if these differ.

    Raises:
        ConfigError: If that gives none, or several answers.
    """
    arrays = list(_arrays_outside_lists(batch, ()))
    sizes = {array.shape[0] for _, array in arrays}
    if len(sizes) > 1:
        sizes.discard(1)  # one entry for the whole batch
    if len(sizes) > 1:
        listed = ", ".join(f"{_show(path)} {tuple(array.shape)}" for path, array in arrays)
        raise ConfigError(
            f"the batch has tensors that disagree on the number of samples, dim 0: {listed}; "
            "give tensors that are not per sample to the loss function in another way, or pass "
            "split=, a function that cuts such batches."
        )
    found = sizes or _sizes_by_lists(batch)
    if len(found) != 1 or 0 in found:
        raise ConfigError(
            f"a batch of type {type(batch).__name__} does not show how many samples it has "
            f"({sorted(found) or 'it holds no tensors'}); pass split=, a function that cuts it."
        )
    return found.pop()


def _sizes_by_lists(batch: Any) -> set[int]:
    sequences = list(_sequences_outside_lists(batch, is_top=True))
    of_others = {len(one) for one in sequences if not all(map(_is_array, one))}
    if of_others:
        return of_others
    sizes = {item.shape[0] if item.ndim else 0 for one in sequences for item in one}
    return sizes if len(sizes) == 1 else {len(one) for one in sequences}


def _arrays_outside_lists(value: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
    if _is_array(value):
        if value.ndim:
            yield path, value
    elif isinstance(value, Mapping) or (not path and _is_sequence(value) and not _are_alike(value)):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in pairs:
            yield from _arrays_outside_lists(item, (*path, key))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _arrays_outside_lists(getattr(value, field.name), (*path, field.name))


def _sequences_outside_lists(value: Any, *, is_top: bool = False) -> Iterator[Sequence[Any]]:
    if _is_sequence(value):
        inner = [found for item in value for found in _sequences_outside_lists(item)]
        if is_top and inner and not _are_alike(value):
            yield from inner
        elif value:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _sequences_outside_lists(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _sequences_outside_lists(getattr(value, field.name))


def _are_alike(value: Sequence[Any]) -> bool:
    """Whether it is a list of dicts with the same keys: samples that nobody has collated."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return False
    return all(item.keys() == value[0].keys() for item in value)


def _could_be_cut(value: Any, num: int) -> bool:
    """Whether ``value`` holds arrays, all of them with ``num`` entries."""
    if _is_array(value):
        return bool(value.ndim) and value.shape[0] == num
    if isinstance(value, Mapping):
        return bool(value) and all(_could_be_cut(item, num) for item in value.values())
    if _is_sequence(value):
        return bool(value) and all(_could_be_cut(item, num) for item in value)
    return False


def _cut_array(value: Any, part: slice, num: int, path: _Path) -> Any:
    if not value.ndim or (value.shape[0] == 1 and num != 1):
        return value
    if value.shape[0] != num:
        raise ConfigError(
            f"the batch has {num} samples, and {_show(path)} has shape {tuple(value.shape)}; its "
            "dim 0 must be the samples. Pass split=, a function that cuts such batches, if not."
        )
    return value[part]


def _is_array(value: Any) -> bool:
    if isinstance(value, Tensor):
        return True
    return hasattr(value, "ndim") and hasattr(value, "shape") and hasattr(value, "__getitem__")


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _like_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(value) is dict or not isinstance(value, MutableMapping):
        return items
    alike = copy.copy(value)  # keeps what its class needs, such as a default factory
    for key, item in items.items():
        alike[key] = item
    return alike


def _like_sequence(value: Sequence[Any], items: list[Any]) -> Any:
    if isinstance(value, list):
        return items
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _show(path: _Path) -> str:
    return "batch" + "".join(f"[{key!r}]" for key in path)
