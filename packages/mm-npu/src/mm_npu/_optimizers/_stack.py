"""Small parameters of one shape in one tensor, so that an update rule calls each kernel once.

torch's ``_foreach_`` functions would not do: on a CPU they call a kernel for each tensor.
"""

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mm_npu._torch_private import copy_all

from ._checks import is_sharded

# Elements of a parameter up to which copying is cheaper than calling each kernel once more.
_SMALL_ON_CPU, _SMALL_ON_DEVICE = 2**13, 2**18
_LARGEST_STACK = 2**18  # elements; a CPU keeps the operands of that many in its caches

Entry = dict[str, Any]  # the state of one parameter
Pair = tuple[Tensor, Entry]


class Operands(NamedTuple):
    """Tensors of shape ``(n, *shape)``, for ``n`` parameters of one shape.

    Attributes:
        p: The parameters, updated in place.
        gradient: Their gradients, which are not changed.
        state: Their states by name, updated in place.
    """

    p: Tensor
    gradient: Tensor
    state: dict[str, Tensor]


class Stack:
    """Parameters of one shape that are updated together.

    A single one is updated where it lies. Several are copied to and from one tensor in each step,
    and their states become views of common tensors.

    Args:
        pairs: The parameters, with states that have a tensor for each of ``names``.
        names: Names of the tensors in a state.
        group_index: Index of their parameter group, or of one with equal hyper-parameters.
    """

    def __init__(self, pairs: Sequence[Pair], names: tuple[str, ...], group_index: int) -> None:
        self.names, self.group_index = names, group_index
        self.params = [p for p, _ in pairs]
        self.entries = [entry for _, entry in pairs]
        self.dtype = self.params[0].dtype
        if len(pairs) > 1:
            self._p = torch.stack(self.params)
            self._parts = self._p.unbind(0)
            self._state = {name: torch.stack([e[name] for e in self.entries]) for name in names}
            self._views = {name: stacked.unbind(0) for name, stacked in self._state.items()}
            for name, views in self._views.items():
                for entry, view in zip(self.entries, views, strict=True):
                    entry[name] = view

    def is_current(self, state: Mapping[Tensor, Entry]) -> bool:
        """Return whether an optimizer's state still holds the tensors of this stack."""
        if not all(map(is_, map(state.get, self.params), self.entries)):
            return False
        return len(self.params) == 1 or all(
            all(map(is_, [entry.get(name) for entry in self.entries], views))
            for name, views in self._views.items()
        )

    def gather(self) -> Operands:
        """Return the operands."""
        gradients: list[Any] = [p.grad for p in self.params]
        if len(self.params) > 1:
            p = torch.stack(self.params, out=self._p)
            return Operands(p, torch.stack(gradients), self._state)
        (entry,) = self.entries
        state = {name: _local(entry[name]).unsqueeze(0) for name in self.names}
        return Operands(
            _local(self.params[0]).unsqueeze(0), _local(gradients[0]).unsqueeze(0), state
        )

    def scatter(self) -> None:
        """Copy the updated operand ``p`` back to the parameters."""
        if len(self.params) > 1:
            copy_all(self.params, self._parts)


def make_stacks(pairs: Sequence[Pair], names: tuple[str, ...], group_index: int) -> list[Stack]:
    """Divide parameters, with complete states, into stacks of one shape, dtype, device and step."""
    kinds: dict[Any, list[Pair]] = {}
    for p, entry in pairs:
        is_small = p.numel() <= (_SMALL_ON_CPU if p.device.type == "cpu" else _SMALL_ON_DEVICE)
        kind = (p.shape, p.dtype, p.device, entry["step"])
        kinds.setdefault(kind if is_small and not is_sharded(p) else id(p), []).append((p, entry))
    stacks = []
    for alike in kinds.values():
        length = max(1, _LARGEST_STACK // max(1, alike[0][0].numel()))
        parts = (alike[start : start + length] for start in range(0, len(alike), length))
        stacks += [Stack(part, names, group_index) for part in parts]
    return stacks


def _local(tensor: Any) -> Tensor:
    """Return this rank's part of a DTensor, and any other tensor itself."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part
