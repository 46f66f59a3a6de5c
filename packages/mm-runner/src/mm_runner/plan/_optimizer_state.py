"""What optimizers keep after a step, without the memory that it would take."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["tensors_kept", "without_compiler"]

_COMPILER = "torch._dynamo"
# Where torch keeps what the compiler made of a method that it is to leave alone.
_LEFT_ALONE = "__dynamo_disable"
# The sizes of a stand-in: of each dimension another one, by which those of what is kept for it are
# known again.
_SIZES = (2, 3, 5, 7, 11, 13)


def tensors_kept(optimizer: Optimizer) -> list[Tensor]:
    """Return what a step of an optimizer makes it keep, on the meta device.

    Raises:
        Exception: Whatever the step raises, such as for want of values or of a closure.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    is_size_blind = _home(optimizer) in ("torch", "mm_npu")
    # Adagrad has a state from the beginning.
    if (
        is_size_blind
        and not optimizer.state
        and all(one.dim() <= len(_SIZES) for one in parameters)
    ):
        return _kept_for_stand_ins(optimizer)
    return _kept_on_meta(optimizer)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Let torch's optimizers be built without importing torch's compiler.

    torch tells it to leave methods of theirs alone when they are first called, and importing it for
    that takes longer than all of a plan. Within this block, in which nothing is compiled, those
    methods are called as they are. Does nothing where the compiler is there already, nor in
    versions of torch that ask it anew at each call.
    """
    marked: list[FunctionType] = []
    for method in vars(Optimizer).values() if _COMPILER not in sys.modules else ():
        function = getattr(method, "__wrapped__", None)
        if isinstance(function, FunctionType) and not hasattr(function, _LEFT_ALONE):
            setattr(function, _LEFT_ALONE, function)
            marked.append(function)
    try:
        yield
    finally:
        for function in marked:
            delattr(function, _LEFT_ALONE)


def _kept_on_meta(optimizer: Optimizer) -> list[Tensor]:
    """Take a step over parameters without values."""
    for group in optimizer.param_groups:
        for parameter in _trained(group):
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return list(_tensors_in(list(optimizer.state.values())))


def _kept_for_stand_ins(optimizer: Optimizer) -> list[Tensor]:
    """Take a step over small tensors: optimizers of torch's and of mm-npu treat all sizes alike.

    On the meta device they would need torch's references in Python, and with them sympy and the
    compiler, which take a second to import.
    """
    groups = [group["params"] for group in optimizer.param_groups]
    kept: list[Tensor] = []
    trained = [_trained(group) for group in optimizer.param_groups]
    try:
        for group, parameters in zip(optimizer.param_groups, trained, strict=True):
            group["params"] = [_stand_in(parameter) for parameter in parameters]
        _step(optimizer)
        for group, parameters in zip(optimizer.param_groups, trained, strict=True):
            for stand_in, parameter in zip(group["params"], parameters, strict=True):
                kept += [
                    torch.empty(
                        _true_shape(one.shape, parameter.shape), dtype=one.dtype, device="meta"
                    )
                    for one in _tensors_in(optimizer.state.get(stand_in, {}))
                ]
    finally:
        optimizer.state.clear()
        for group, parameters in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = parameters
    return kept


def _trained(group: Mapping[str, Any]) -> list[Tensor]:
    return [parameter for parameter in group["params"] if parameter.requires_grad]


def _stand_in(parameter: Tensor) -> Tensor:
    shape = [
        size if true > 1 else true for size, true in zip(_SIZES, parameter.shape, strict=False)
    ]
    small = torch.zeros(shape, dtype=parameter.dtype)
    small.grad = torch.zeros(shape, dtype=parameter.dtype)
    return small


def _true_shape(shape: Sequence[int], parameter: Sequence[int]) -> list[int]:
    """Return a shape of the stand-in's state as it would be for the parameter itself."""
    true = dict(zip(_SIZES, parameter, strict=False))
    return [true.get(size, size) for size in shape]


def _step(optimizer: Optimizer) -> None:
    """Take a step; without the decorators of torch's, for which it imports its compiler."""
    is_decorated = _home(optimizer) == "torch" and not optimizer.defaults.get("differentiable")
    if _COMPILER in sys.modules or not is_decorated:
        optimizer.step()
        return
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)


def _home(optimizer: Optimizer) -> str:
    return type(optimizer).__module__.partition(".")[0]


def _tensors_in(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item)
