"""How an update rule runs over the operands of a unit: block by block, or compiled.

A block is small enough that all operands of the rule stay in the processor's cache, and every block
uses the same spare tensors for its temporaries. Operands of half precision are computed with in
float32, and rounded once.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ._arithmetic import add_scaled
from ._operands import Operands, computing_dtype

_LINE = 64  # elements: whole lines of the cache for each of up to four threads

Options = Mapping[str, Any]
Spares = tuple[Tensor, Tensor, Tensor]


class Step(NamedTuple):
    """The end of an update by norms: ``p <- keep * p - rate * direction``.

    Both factors are numbers, or tensors that broadcast to the operands.
    """

    keep: float | Tensor
    rate: float | Tensor


class Rule(Protocol):
    """An update that is the same for every element.

    Called with operands, spare tensors of their shape, and the group's options: updates ``p`` and
    the state in place, and writes to the spare tensors, to nothing else.
    """

    def __call__(self, operands: Operands, spares: Spares, options: Options) -> None: ...


class NormRule(Protocol):
    """An update with a step that depends on norms of a whole tensor, or of its rows."""

    def advance(self, operands: Operands, spares: Spares, options: Options) -> Tensor:
        """Update the state, leave the direction in the first spare tensor, and return sums.

        Returns:
            What norms are made of, summed over each row of these operands: ``(k, n, rows)``.
        """

    def conclude(self, sums: Tensor, shape: tuple[int, ...], options: Options) -> Step:
        """Make the step for operands of ``shape`` from the sums over all rows, ``(k, n, rows)``."""


class Scratch:
    """Memory for temporaries, which grows to the largest block asked for."""

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._spares: dict[Any, Spares] = {}

    def spares(self, like: Tensor) -> Spares:
        """Return three tensors of the shape of ``like``, of a dtype to compute in."""
        dtype, device = computing_dtype(like.dtype), like.device
        key = (like.shape, dtype, device)
        if key not in self._spares:
            memory = self._memory.get((dtype, device))
            if memory is None or memory.shape[1] < like.numel():
                memory = torch.empty(3, like.numel(), dtype=dtype, device=device)
                self._memory[dtype, device] = memory
                self._spares.clear()  # views of what was too small
            first, second, third = (row[: like.numel()].view(like.shape) for row in memory)
            self._spares[key] = first, second, third
        return self._spares[key]


def run_in_blocks(
    rule: Rule, operands: Operands, options: Options, scratch: Scratch, size: int
) -> None:
    """Apply an elementwise rule to blocks of about ``size`` elements."""
    is_half = operands.p.dtype != computing_dtype(operands.p.dtype)
    for block in _split(operands, size):
        if is_half:
            _run(rule, block, scratch.spares(block.p), options)
        else:  # between two blocks, the processor waits for Python
            rule(block, scratch.spares(block.p), options)


def run_whole(rule: Rule, operands: Operands, options: Options) -> None:
    """Apply an elementwise rule at once; what a compiler makes one kernel of."""
    _run(rule, operands, _new_spares(operands.p), options)


def _run(rule: Rule, operands: Operands, spares: Spares, options: Options) -> None:
    wide = _widen(operands)
    rule(wide, spares, options)
    _narrow(wide.p, operands.p)
    for name, value in operands.state.items():
        _narrow(wide.state[name], value)


def run_norms_in_blocks(
    rule: NormRule, operands: Operands, options: Options, scratch: Scratch, size: int
) -> None:
    """Apply a rule with norms in two passes over blocks of about ``size`` elements.

    The direction is kept between them: the one temporary of a parameter's size.
    """
    direction = torch.empty_like(operands.p, dtype=computing_dtype(operands.p.dtype))
    pieces = _split_tensor(direction, size)
    sums = [
        _advance(rule, block, (piece, *scratch.spares(block.p)[1:]), options)
        for block, piece in zip(_split(operands, size), pieces, strict=True)
    ]
    step = rule.conclude(torch.cat(sums, dim=-1), tuple(operands.p.shape), options)
    start = 0
    for p, piece in zip(_split_tensor(operands.p, size), pieces, strict=True):
        descend(p, piece, _cut(step, start, p.shape[1]))
        start += p.shape[1]


def prepare_whole(rule: NormRule, operands: Operands, options: Options) -> tuple[Tensor, Step]:
    """Do at once what a rule with norms does before ``descend``; give the direction and the step.

    The two are compiled apart: a compiler that sees both computes the step's factors anew for every
    few elements.
    """
    spares = _new_spares(operands.p)
    sums = _advance(rule, operands, spares, options)
    return spares[0], rule.conclude(sums, tuple(operands.p.shape), options)


def _advance(rule: NormRule, operands: Operands, spares: Spares, options: Options) -> Tensor:
    wide = _widen(operands)
    sums = rule.advance(wide, spares, options)
    for name, value in operands.state.items():
        _narrow(wide.state[name], value)
    return sums


def descend(p: Tensor, direction: Tensor, step: Step) -> None:
    """Make a step along ``direction``, which is used up."""
    wide = p.to(direction.dtype)
    if isinstance(step.keep, Tensor) or step.keep != 1:
        wide.mul_(step.keep)
    add_scaled(wide, direction, -step.rate, direction)
    _narrow(wide, p)


def _cut(step: Step, start: int, length: int) -> Step:
    def cut(factor: float | Tensor) -> float | Tensor:
        if not isinstance(factor, Tensor):
            return factor
        if factor.dim() > 1 and factor.shape[1] > 1:  # one per row
            return factor.narrow(1, start, length)
        # A number saves a kernel, and on a CPU reading it waits for nothing.
        return float(factor) if factor.is_cpu and factor.numel() == 1 else factor

    return Step(cut(step.keep), cut(step.rate))


def _new_spares(like: Tensor) -> Spares:
    dtype = computing_dtype(like.dtype)
    first, second, third = (torch.empty_like(like, dtype=dtype) for _ in range(3))
    return first, second, third


def _widen(operands: Operands) -> Operands:
    dtype = computing_dtype(operands.p.dtype)
    if dtype == operands.p.dtype:
        return operands
    state = {name: value.to(dtype) for name, value in operands.state.items()}
    return Operands(operands.p.to(dtype), operands.gradient.to(dtype), state)


def _narrow(wide: Tensor, narrow: Tensor) -> None:
    if wide.dtype != narrow.dtype:
        narrow.copy_(wide)


def _split(operands: Operands, size: int) -> Iterator[Operands]:
    if operands.p.numel() <= size:
        yield operands
        return
    names = tuple(operands.state)
    tensors = (operands.p, operands.gradient, *operands.state.values())
    for p, gradient, *state in zip(*(_split_tensor(t, size) for t in tensors), strict=True):
        yield Operands(p, gradient, dict(zip(names, state, strict=True)))


def _split_tensor(tensor: Tensor, size: int) -> tuple[Tensor, ...]:
    """Cut along the second dimension, if there are two, into pieces of about ``size`` elements.

    The pieces are alike, as far as they can start on a line of the cache: a remainder would be too
    short for all threads.
    """
    if tensor.numel() <= size:
        return (tensor,)
    dim = min(1, tensor.dim() - 1)
    count = -(-tensor.numel() // size)
    length = -(-tensor.shape[dim] // count)
    if length >= _LINE:
        length = -(-length // _LINE) * _LINE
    return torch.split(tensor, length, dim)
