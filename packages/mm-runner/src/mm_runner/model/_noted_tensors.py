"""Tensors as they were before a forward, and whether they still are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor

__all__ = ["SMALL", "Noted", "copy_plain", "is_equal", "is_ordinary", "overlaps", "version_of"]

# Of that many numbers, a copy costs next to nothing.
SMALL = 1 << 16


def version_of(tensor: Tensor) -> int:
    """Return torch's count of changes to a tensor; those of inference mode have none."""
    return -1 if tensor.is_inference() else tensor._version  # noqa: SLF001


class Noted:
    """A tensor before a forward.

    Args:
        tensor: A buffer, or in an attribute.
        is_copied: Whether its values are kept, as those of one that the forward may change.
        is_watched: Whether it will be asked for changes.
    """

    __slots__ = ("_requires_grad", "tensor", "values", "version")

    def __init__(self, tensor: Tensor, *, is_copied: bool, is_watched: bool) -> None:
        self.values = _copy(tensor) if is_copied else None
        self._requires_grad = tensor.requires_grad
        self.tensor: Tensor | None = None
        if is_watched:
            self.version = version_of(tensor)
            # Without what computed it, which is the step before with all that keeps. It has the
            # same values and count of changes.
            is_leaf = tensor.grad_fn is None
            self.tensor = tensor if is_leaf else tensor.detach().requires_grad_()

    def is_changed(self, *, by_value: bool = True) -> bool:
        """Return whether it was changed since.

        Without a copy, or not ``by_value``, only what torch counts shows.
        """
        assert self.tensor is not None  # watched
        if version_of(self.tensor) != self.version:
            return True
        # What some kernels and ``buffer.data`` change is not counted.
        return by_value and self.values is not None and not is_equal(self.values, self.tensor)

    def stand_in(self) -> Tensor:
        """Return a tensor with the values before the forward, for a repetition to use."""
        if self.values is None:  # the forward does not change it
            assert self.tensor is not None
            return self.tensor
        if not self._requires_grad:
            return self.values.clone()
        # As what was computed: a leaf of autograd's could not be changed in place.
        with torch.enable_grad():
            return self.values.detach().requires_grad_().clone()


def copy_plain(tensor: Tensor) -> Tensor | None:
    """Return a copy of a plain tensor, and None for others, such as one part of a whole."""
    return _copy(tensor) if is_ordinary(tensor) else None


def is_ordinary(tensor: Tensor) -> bool:
    """Return whether a tensor is one of torch's own kind, with all its numbers in memory."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    return tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_quantized)


def is_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same, NaN too; True for those that are not plain."""
    if not is_ordinary(other):
        return True
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    if torch.equal(one, other):
        return True
    if not (other.is_floating_point() or other.is_complex()):
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124


def overlaps(named: Iterable[tuple[str, Noted]]) -> Iterator[tuple[str, Noted, str, Noted]]:
    """Return pairs of buffers, with their names, that have memory in common."""
    spans = []
    for name, noted in named:
        tensor = noted.tensor
        if tensor is not None and is_ordinary(tensor) and tensor.numel():
            steps = zip(tensor.shape, tensor.stride())  # noqa: B905 - of one length
            last = sum((size - 1) * stride for size, stride in steps)
            start = tensor.data_ptr()
            end = start + (last + 1) * tensor.element_size()
            spans.append((str(tensor.device), start, end, name, noted))
    spans.sort(key=lambda span: span[:2])
    for index, (device, _, end, name, noted) in enumerate(spans):
        for other_device, start, _, other_name, other in islice(spans, index + 1, None):
            if start >= end or device != other_device:
                break
            if not _is_interleaved(noted.tensor, other.tensor):
                yield name, noted, other_name, other


def _is_interleaved(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two tensors lie between each other's numbers, as real and imaginary parts."""
    assert one is not None
    assert other is not None
    size, other_size = one.element_size(), other.element_size()
    steps = [size * stride for length, stride in zip(one.shape, one.stride()) if length > 1]  # noqa: B905
    steps += [
        other_size * stride
        for length, stride in zip(other.shape, other.stride())  # noqa: B905
        if length > 1
    ]
    step = math.gcd(*steps)  # each number is a multiple of that away from the first
    if step == 0:
        return False
    distance = (other.data_ptr() - one.data_ptr()) % step
    return distance >= size and step - distance >= other_size


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
