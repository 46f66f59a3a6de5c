"""Copies of a call's inputs that a call can change and gradients can be taken of."""

import inspect
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from copy import copy as shallow_copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

Named = tuple[str, Tensor]
_SEED = 0


class CopiedInputs:
    """Inputs of a call, copied deep enough to call again without a trace.

    The copies look like the originals to a compiler: same layout, same need of a gradient, same
    object where one is given twice. Objects that are no tensors, containers, dataclasses or plain
    values are passed on as they are.

    Args:
        method: What is called; it names the arguments.
        args: Positional arguments.
        kwargs: Keyword arguments.
        shake: Relative change of every floating-point element, up or down at random; 0 for none.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        leaves: Names, and the tensors to take gradients of.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        shake: float,
    ) -> None:
        self._shake = Shake(shake)
        self.leaves: list[Named] = []
        self._made: dict[int, Any] = {}
        names = _positional_names(method, args)
        self.args = tuple(self._copy(name, value) for name, value in zip(names, args, strict=True))
        self.kwargs = {name: self._copy(repr(name), value) for name, value in kwargs.items()}

    def _copy(self, name: str, value: Any) -> Any:
        if id(value) not in self._made:
            self._made[id(value)] = self._copy_anew(name, value)
        return self._made[id(value)]

    def _copy_anew(self, name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._copy_tensor(name, value)
        if isinstance(value, (dict, UserDict)):
            copy: Any = shallow_copy(value)
            for key, item in value.items():
                copy[key] = self._copy(f"{name}[{key!r}]", item)
            return copy
        if isinstance(value, (list, tuple)):
            items = [self._copy(f"{name}[{index}]", item) for index, item in enumerate(value)]
            return _like(value, items)
        if is_dataclass(value) and not isinstance(value, type):
            return self._copy_fields(name, value)
        return value

    def _copy_fields(self, name: str, value: Any) -> Any:
        copy = shallow_copy(value)
        for each in fields(value):
            if hasattr(value, each.name):
                item = self._copy(f"{name}.{each.name}", getattr(value, each.name))
                object.__setattr__(copy, each.name, item)  # it may be frozen
        return copy

    def _copy_tensor(self, name: str, tensor: Tensor) -> Tensor:
        if tensor.requires_grad:
            # A leaf cannot be changed in place, what was computed can.
            shaken = self._shake(tensor)
            is_original = shaken is tensor and tensor.is_leaf
            leaf = tensor if is_original else shaken.detach().requires_grad_()
            self.leaves.append((f"input {name}", leaf))
            if tensor.is_leaf:
                return leaf
            copy: Tensor = _Copy.apply(leaf)  # type: ignore[no-untyped-call]
        else:
            copy = _copy_of(self._shake(tensor))
        # Dimensions that the user marked as dynamic, for example.
        marks = {key: mark for key, mark in vars(tensor).items() if key.startswith("_dynamo")}
        vars(copy).update(marks)
        return copy


class Shake:
    """Moves floating-point numbers by as little as rounding does, the same way each time.

    Args:
        size: Relative change of an element; 0 for none.
    """

    def __init__(self, size: float) -> None:
        self._size = size
        self._generator = torch.Generator().manual_seed(_SEED)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return ``tensor``, or what it is moved to."""
        if not self._size or not tensor.is_floating_point():
            return tensor
        factor = 1 + self._size * self.signs_like(tensor)
        return (tensor.detach() * factor).to(tensor.dtype)

    def signs_like(self, tensor: Tensor) -> Tensor:
        """Return ones of random sign, or of equal ones for tensors that are not torch's own."""
        if type(tensor) is not Tensor:  # distributed over devices, for example
            return torch.ones_like(tensor)
        signs = torch.randint(0, 2, tensor.shape, generator=self._generator) * 2 - 1
        return signs.to(tensor.device, tensor.dtype)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, tensor: Tensor) -> Tensor:
        return _copy_of(tensor)

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return gradient


def _copy_of(tensor: Tensor) -> Tensor:
    if type(tensor) is not Tensor or tensor.layout != torch.strided:
        return tensor.detach().clone()
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    try:
        return copy.copy_(tensor.detach())
    except RuntimeError:
        # Elements share memory, as in an expanded tensor: nothing can change it in place.
        return tensor.detach()


def _like(value: Any, items: list[Any]) -> Any:
    if isinstance(value, list):
        copy = shallow_copy(value)
        copy[:] = items
        return copy
    if type(value) is tuple:
        return tuple(items)
    return type(value)(*items) if hasattr(value, "_fields") else value


def _positional_names(method: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    try:
        names = list(inspect.signature(method).bind_partial(*args).arguments)
    except (TypeError, ValueError):  # no signature, or one that a decorator hides
        names = []
    if len(names) != len(args):  # collected by *args
        return [f"argument {index}" for index in range(len(args))]
    return [repr(name) for name in names]


def tensors_in(name: str, value: Any) -> Iterator[Named]:
    """Yield the tensors of a result, with a name that says where in it they lie."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(f"{name}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors_in(f"{name}[{index}]", item)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from tensors_in(f"{name}.{each.name}", getattr(value, each.name, None))
