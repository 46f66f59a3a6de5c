"""Few input shapes instead of many: samples are padded to one of a few sizes, then collated."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._errors import ConfigError

Size = tuple[int, ...]


class BucketingCollate:
    """Collate a batch whose samples differ in size, padded to the smallest of a few sizes.

    Compiled code is made once for each shape: with B sizes here, and batches of one length
    (``drop_last=True``), a model sees at most B shapes. What was padded is the model's business;
    let ``length_key`` carry the true sizes to it.

    Args:
        sizes: The sizes allowed: numbers, or tuples where ``dims`` names several dimensions. Of
            those that a batch fits in, the one with the fewest elements is taken.
        dims: Dimensions of a sample's tensor that are padded at their end, batch not counted.
        pad_values: What to pad, and with which value: ``{"image": 0.0, "mask": 255}``; keys are
            those of a sample that is a dict, or positions in one that is a tuple. What is padded
            are tensors or NumPy arrays, which become tensors. Leave it out for samples that are
            such themselves, which are padded with 0, or write ``{None: -100}``.
        length_key: For dict samples, a new key for the true sizes; in the batch it holds a list of
            tuples if ``dims`` are several, or of numbers.
        collate: Makes a batch of padded samples; torch's ``default_collate`` if left out.

    Raises:
        ConfigError: If ``sizes`` and ``dims`` do not belong together or are no whole numbers, or
            ``pad_values`` is no mapping.

    Example:
        >>> collate = BucketingCollate([4, 8])
        >>> collate([torch.ones(3), torch.ones(5)]).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        sizes: Sequence[int | Size],
        *,
        dims: Sequence[int] = (0,),
        pad_values: Mapping[Any, float] | None = None,
        length_key: str | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        try:
            self.dims = tuple(map(index, dims))
        except TypeError:
            raise ConfigError(
                f"BucketingCollate got dims={dims!r}; it takes dimensions, such as [0]."
            ) from None
        self.sizes = _ascending(sizes, self.dims)
        if not isinstance(pad_values, Mapping | None):
            raise ConfigError(
                f"BucketingCollate got pad_values={pad_values!r}; it takes a value for each part, "
                "such as {'image': 0.0}, {0: 0.0} or, for samples that are tensors, {None: 0.0}."
            )
        self._pad_values = dict(pad_values) if pad_values else None
        self._length_key = length_key
        self._collate = collate

    @classmethod
    def from_lengths(
        cls, lengths: Sequence[int], num_buckets: int, **arguments: Any
    ) -> "BucketingCollate":
        """Choose at most ``num_buckets`` sizes that pad samples of these lengths least.

        Args:
            lengths: Lengths as they occur in the data set, at least one.
            num_buckets: How many sizes to choose.
            **arguments: The constructor's other arguments.

        Raises:
            ConfigError: If there is no length, or no bucket.
        """
        if not len(lengths) or num_buckets < 1:
            raise ConfigError(
                f"BucketingCollate.from_lengths got {len(lengths)} lengths and "
                f"num_buckets={num_buckets}; it takes at least one of both."
            )
        return cls(choose_sizes(lengths, num_buckets), **arguments)

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Pad and collate.

        Raises:
            ConfigError: If there is no sample, or one does not have what is to be padded.
            ValueError: If a sample is larger than every size.
        """
        if len(samples) == 0:
            raise ConfigError("BucketingCollate got a batch of no samples; it takes one or more.")
        parts = [self._tensors(sample) for sample in samples]
        tensors = [tensor for part in parts for tensor in part.values()]
        largest = tuple(max(tensor.shape[dim] for tensor in tensors) for dim in self.dims)
        size = self._fitting(largest)
        padded = [self._padded(*each, size) for each in zip(samples, parts, strict=True)]
        if self._collate is not None:
            return self._collate(padded)
        from torch.utils.data import default_collate  # noqa: PLC0415 - not needed to compile

        return default_collate(padded)

    def _fitting(self, largest: Size) -> Size:
        for size in self.sizes:
            if all(has <= room for has, room in zip(largest, size, strict=True)):
                return size
        raise ValueError(
            f"BucketingCollate got samples of size {largest} in dimensions {self.dims}, and its "
            f"sizes are {self.sizes}. Add a larger size, or crop the samples."
        )

    def _tensors(self, sample: Any) -> dict[Any, Tensor]:
        kind = type(sample).__name__
        if self._length_key is not None and not isinstance(sample, Mapping):
            raise ConfigError(
                f"BucketingCollate has length_key={self._length_key!r}, which is a key of dict "
                f"samples, and got samples of type {kind}. Make them dicts, or leave it out."
            )
        if _is_array(sample):
            if None not in (self._pad_values or {None: 0.0}):
                raise ConfigError(
                    f"BucketingCollate pads {list(self._pad_values or ())} of each sample, and got "
                    f"samples of type {kind}. Leave pad_values out, or write {{None: value}}."
                )
            return {None: self._checked(None, sample)}
        if self._pad_values is None:
            raise ConfigError(
                f"BucketingCollate got samples of type {kind} and no pad_values; "
                "say what to pad, such as pad_values={'image': 0.0} or {0: 0.0}."
            )
        return {key: self._checked(key, _part(sample, key)) for key in self._pad_values}

    def _checked(self, key: Any, part: Any) -> Tensor:
        name = "a sample" if key is None else f"{key!r} of a sample"
        try:
            tensor = torch.as_tensor(part) if _is_array(part) else None
        except TypeError:  # an array of objects
            tensor = None
        if tensor is None:
            raise ConfigError(
                f"BucketingCollate pads tensors and arrays of numbers, but {name} is of type "
                f"{type(part).__name__}. Make it a tensor in the data set."
            )
        if not all(-tensor.ndim <= dim < tensor.ndim for dim in self.dims):
            raise ConfigError(
                f"BucketingCollate pads the dimensions {self.dims}, but {name} has the shape "
                f"{tuple(tensor.shape)}. Change dims, or the sample."
            )
        return tensor

    def _padded(self, sample: Any, tensors: Mapping[Any, Tensor], size: Size) -> Any:
        values = self._pad_values or {}
        padded = {
            key: self._pad(tensor, size, values.get(key, 0.0)) for key, tensor in tensors.items()
        }
        if None in padded and _is_array(sample):
            return padded[None]
        if isinstance(sample, Mapping):
            return {**sample, **padded, **self._lengths(tensors)}
        items = list(sample)
        for position, tensor in padded.items():
            items[position] = tensor
        return type(sample)(*items) if hasattr(sample, "_fields") else tuple(items)

    def _lengths(self, tensors: Mapping[Any, Tensor]) -> dict[str, Any]:
        if self._length_key is None:
            return {}
        tensor = next(iter(tensors.values()))
        lengths = tuple(tensor.shape[dim] for dim in self.dims)
        return {self._length_key: lengths if len(lengths) > 1 else lengths[0]}

    def _pad(self, tensor: Tensor, size: Size, value: float) -> Tensor:
        # torch's pad counts dimensions from the last one, with two numbers for each.
        amounts = [0] * (2 * tensor.ndim)
        for dim, room in zip(self.dims, size, strict=True):
            amounts[2 * (tensor.ndim - 1 - dim % tensor.ndim) + 1] = room - tensor.shape[dim]
        return pad(tensor, amounts, value=value)


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor) or hasattr(type(value), "__array__")


def _part(sample: Any, key: Any) -> Any:
    try:
        return sample[key]
    except (KeyError, IndexError, TypeError):
        has = f"the keys {list(sample)}" if isinstance(sample, Mapping) else repr(type(sample))
        raise ConfigError(
            f"BucketingCollate pads {key!r} of each sample, and got one that has no such part: "
            f"{has}. Name in pad_values what every sample has."
        ) from None


def _ascending(sizes: Sequence[int | Size], dims: Size) -> list[Size]:
    try:
        each = [tuple(size) if isinstance(size, (tuple, list)) else (size,) for size in sizes]
        checked = [tuple(map(index, size)) for size in each]
        is_fine = bool(checked) and all(
            len(size) == len(dims) and min(size, default=0) > 0 for size in checked
        )
    except TypeError:  # not even numbers
        is_fine = False
    if not is_fine:
        raise ConfigError(
            f"BucketingCollate got sizes={sizes!r} and dims={dims}; it takes at least one size, "
            "each with as many whole numbers above 0 as there are dims."
        )
    return sorted(checked, key=prod)


def choose_sizes(lengths: Sequence[int], num_buckets: int) -> list[int]:
    """Choose at most ``num_buckets`` of ``lengths``, those that pad least."""
    occurrences = sorted(Counter(lengths).items())
    values = [value for value, _ in occurrences]
    # numbers[i]: how many samples are at most as long as values[i - 1].
    numbers = [0, *accumulate(number for _, number in occurrences)]
    # best[end]: the least room that the samples up to values[end - 1] need, and the sizes for it.
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for _ in range(min(num_buckets, len(values))):
        best = {0: best[0]} | {
            end: min(
                (
                    room + (numbers[end] - numbers[start]) * values[end - 1],
                    [*sizes, values[end - 1]],
                )
                for start, (room, sizes) in best.items()
                if start < end
            )
            for end in range(1, len(values) + 1)
        }
    return best[len(values)][1]
