"""Which units a compiled step updates in one call.

A call of what ``torch.compile`` made takes about 0.1 ms before its kernel starts: as long as the
kernel needs for half a million elements. So large parameters of one shape are updated several at a
time.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from torch import Tensor

from ._operands import local
from ._units import AbstractUnit, Single

# Every size of a batch is compiled apart: there are two, this one and one.
_SIZE = 4
# Bytes of all parameters of a batch: a larger one takes far longer than its call.
_LARGEST = 2**24


def make_batches(units: Iterable[AbstractUnit]) -> list[list[AbstractUnit]]:
    """Divide units into batches, each of which one call may update."""
    ordered = sorted(units, key=_kind)
    return [batch for _, alike in groupby(ordered, key=_kind) for batch in _cut(list(alike))]


def in_equal_steps(batch: Sequence[AbstractUnit]) -> Iterator[Sequence[AbstractUnit]]:
    """Yield the batch, or, if its parameters have not made the same number of steps, each unit."""
    if len({unit.entries[0]["step"] for unit in batch}) == 1:
        yield batch
    else:
        yield from ([unit] for unit in batch)


def _kind(unit: AbstractUnit) -> tuple[str, ...]:
    p = unit.params[0]
    return str(type(unit)), str(unit.shape), str(p.dtype), str(p.device), str(local(p).shape)


def _cut(alike: list[AbstractUnit]) -> Iterator[list[AbstractUnit]]:
    """Yield full batches, and the rest one by one."""
    while len(alike) >= _SIZE and _can_join(alike[:_SIZE]):
        yield alike[:_SIZE]
        alike = alike[_SIZE:]
    yield from ([unit] for unit in alike)


def _can_join(batch: Sequence[AbstractUnit]) -> bool:
    # Stacks share the memory that they gather in. Of tensors that share memory, the compiler makes
    # one, with copies.
    params = [local(unit.params[0]) for unit in batch]
    tensors = params + [value for unit in batch for value in unit.state.values()]
    size = sum(p.numel() * p.element_size() for p in params)
    is_single = all(isinstance(unit, Single) for unit in batch)
    return is_single and size <= _LARGEST and len(set(map(_memory, tensors))) == len(tensors)


def _memory(tensor: Tensor) -> Any:
    return tensor.untyped_storage().data_ptr()
