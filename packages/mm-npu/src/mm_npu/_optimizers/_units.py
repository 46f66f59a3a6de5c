"""How parameters become operands of an update: small ones in stacks, large ones as they are.

A step over small tensors spends its time on calling kernels, one over large tensors on memory. So
small parameters are updated together, those of one shape where a rule has norms: their states live
in stacks, of which the optimizer's state holds views, and parameters and gradients are copied to
and from a buffer. A large parameter is updated in place, block by block; see ``_rules``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import is_
from typing import Any

import torch
from torch import Tensor

from ._operands import Layout, Operands, block_size, is_dense, is_sharded, local, memory_order

# Up to this size, copying to and from a stack is cheaper than calling every kernel once more: on a
# CPU by measurement; on an accelerator, launching a kernel takes as long as such a copy.
_SMALL_ON_CPU, _SMALL_ON_DEVICE = 8192, 2**18

Entry = dict[str, Any]  # the state of one parameter
Pair = tuple[Tensor, Entry]


class AbstractUnit(ABC):
    """Parameters that are updated together.

    Args:
        pairs: The parameters, which have gradients, with their states.
        layout: What the rule asks for.
    """

    def __init__(self, pairs: Sequence[Pair], layout: Layout) -> None:
        self.params = [p for p, _ in pairs]
        self.entries = [entry for _, entry in pairs]
        self.layout = layout
        self.shape: tuple[int, ...] = (sum(local(p).numel() for p in self.params),)
        if layout.shape is not None:
            self.shape = layout.shape(len(pairs), self.params[0])
        self.dtype = self.params[0].dtype
        self.state = self._lay_state_out()
        self._held = {name: [entry[name] for entry in self.entries] for name in layout.names}

    @abstractmethod
    def _lay_state_out(self) -> dict[str, Tensor]:
        """Return the states as operands, after making the entries views of them."""

    @abstractmethod
    def gather_gradient(self) -> Tensor:
        """Return the gradient as an operand; a stack's is valid until another one is gathered."""

    @abstractmethod
    def gather(self) -> Operands:
        """Return the operands; a stack's are valid until those of another one are gathered."""

    @abstractmethod
    def scatter(self) -> None:
        """Write the updated operand ``p`` back to the parameters."""

    def is_current(self, state: Mapping[Tensor, Entry]) -> bool:
        """Say whether ``state`` still holds what this unit was made of."""
        entries, dtype = self.entries, self.dtype
        return (
            all(map(is_, map(state.__getitem__, self.params), entries))
            and all(
                all(map(is_, [entry.get(name) for entry in entries], held))
                for name, held in self._held.items()
            )
            and all(p.dtype is dtype for p in self.params)
            and not (self.layout.equal_steps and len({e["step"] for e in entries}) > 1)
        )

    def advance_step(self) -> int:
        """Count one step more, and return its number."""
        for entry in self.entries:
            entry["step"] += 1
        number: int = self.entries[0]["step"]
        return number


class Single(AbstractUnit):
    """One parameter, updated where it lies."""

    def is_current(self, state: Mapping[Tensor, Entry]) -> bool:
        """Say whether ``state`` still holds what this unit was made of, and ``p`` is laid so."""
        return local(self.params[0]).stride() == self._strides and super().is_current(state)

    def _lay_state_out(self) -> dict[str, Tensor]:
        self._strides = local(self.params[0]).stride()
        self._order = memory_order(local(self.params[0]))
        return {name: self._lay_out(name) for name in self.layout.names}

    def _lay_out(self, name: str) -> Tensor:
        (p,), (entry,) = self.params, self.entries
        laid = local(entry[name]).permute(self._order)
        if not laid.is_contiguous():  # loaded from where it was laid out in another way
            entry[name] = torch.empty_like(p).copy_(entry[name])
            laid = local(entry[name]).permute(self._order)
        return laid.view(self.shape)

    def gather_gradient(self) -> Tensor:
        """Return the gradient as an operand."""
        return local(self.params[0].grad).permute(self._order).reshape(self.shape)

    def gather(self) -> Operands:
        """Return the operands."""
        p = local(self.params[0]).permute(self._order).view(self.shape)
        return Operands(p, self.gather_gradient(), self.state)

    def scatter(self) -> None:
        """Do nothing: the parameter has been updated in place."""


class Stack(AbstractUnit):
    """Small parameters, or one that is not dense, copied to and from common tensors.

    Args:
        pairs: The parameters, which have gradients, with their states.
        layout: What the rule asks for.
        buffers: Memory for parameters and gradients: two rows of enough elements.
    """

    def __init__(self, pairs: Sequence[Pair], layout: Layout, buffers: Tensor) -> None:
        self._is_even = len({p.shape for p, _ in pairs}) == 1
        super().__init__(pairs, layout)
        self._p, self._gradient = (row[: _num_elements(pairs)] for row in buffers)
        self._views = self._cut(self._p)

    def _lay_state_out(self) -> dict[str, Tensor]:
        state = {}
        size = sum(p.numel() for p in self.params)
        for name in self.layout.names:
            values = [entry[name] for entry in self.entries]
            memory = torch.empty(size, dtype=values[0].dtype, device=values[0].device)
            state[name] = self._join(values, memory)
            for entry, view in zip(self.entries, self._cut(memory), strict=True):
                entry[name] = view
        return state

    def _join(self, tensors: Sequence[Tensor], memory: Tensor) -> Tensor:
        if self._is_even:  # the faster way
            torch.stack(tuple(tensors), out=memory.view(len(tensors), *tensors[0].shape))
        else:
            torch.cat([tensor.reshape(-1) for tensor in tensors], out=memory)
        return memory.view(self.shape)

    def _cut(self, memory: Tensor) -> list[Tensor]:
        pieces = torch.split(memory, [p.numel() for p in self.params])
        return [piece.view(p.shape) for piece, p in zip(pieces, self.params, strict=True)]

    def gather_gradient(self) -> Tensor:
        """Return the gradients as an operand, valid until the next stack's are gathered."""
        grads: list[Any] = [p.grad for p in self.params]
        return self._join(grads, self._gradient)

    def gather(self) -> Operands:
        """Return the operands, valid until the next stack's are gathered."""
        return Operands(self._join(self.params, self._p), self.gather_gradient(), self.state)

    def scatter(self) -> None:
        """Copy the updated stack back to its parameters."""
        if hasattr(torch, "_foreach_copy_"):
            torch._foreach_copy_(self.params, self._views)
        else:  # torch < 2.1
            for p, view in zip(self.params, self._views, strict=True):
                p.copy_(view)


class Buffers:
    """Memory for stacks of parameters and gradients, which grows to the largest asked for."""

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def rows(self, like: Tensor, length: int) -> Tensor:
        """Return two rows of at least ``length`` elements."""
        key = like.dtype, like.device
        memory = self._memory.get(key)
        if memory is None or memory.shape[1] < length:
            memory = torch.empty(2, length, dtype=like.dtype, device=like.device)
            self._memory[key] = memory
        return memory


def make_units(pairs: Sequence[Pair], layout: Layout, buffers: Buffers) -> list[AbstractUnit]:
    """Divide parameters, which have gradients, into units; those without elements into none."""
    stacked = [pair for pair in pairs if _is_to_stack(pair[0])]
    chunks = sorted(_divide(stacked, layout), key=_num_elements, reverse=True)
    units: list[AbstractUnit] = [  # the largest first, for which the buffers are made
        Stack(chunk, layout, buffers.rows(chunk[0][0], _num_elements(chunk))) for chunk in chunks
    ]
    alone = [pair for pair in pairs if pair[0].numel() and not _is_to_stack(pair[0])]
    return units + [Single([pair], layout) for pair in alone]


def _is_to_stack(p: Tensor) -> bool:
    if is_sharded(p) or p.numel() == 0:
        return False
    small = _SMALL_ON_CPU if p.device.type == "cpu" else _SMALL_ON_DEVICE
    # Rules with rows want the first dimension outermost in memory, too.
    is_direct = memory_order(p)[:1] == (0,) and is_dense(p)
    return p.numel() <= small or not is_direct


def _divide(pairs: Sequence[Pair], layout: Layout) -> Iterator[list[Pair]]:
    def kind(pair: Pair) -> tuple[Any, ...]:
        p, entry = pair
        shape = () if layout.shape is None else tuple(p.shape)
        return str(p.dtype), str(p.device), layout.equal_steps * entry["step"], shape

    def order(pair: Pair) -> tuple[Any, ...]:  # stacks of one shape, as far as possible
        return *kind(pair), tuple(pair[0].shape)

    for _, group in groupby(sorted(pairs, key=order), key=kind):
        yield from _fill(list(group))


def _fill(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    chunk: list[Pair] = []
    size, block = 0, block_size(pairs[0][0])
    for pair in pairs:
        size += pair[0].numel()
        if chunk and size > block:
            yield chunk
            chunk, size = [], pair[0].numel()
        chunk.append(pair)
    yield chunk


def _num_elements(pairs: Sequence[Pair]) -> int:
    return sum(p.numel() for p, _ in pairs)
