"""Portable optimizers with an update rule of this package."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mm_npu._errors import ConfigError
from mm_npu._torch_private import is_flattened

from ._checks import check_dense_gradients, is_sharded
from ._npu_fused import AbstractNpuFused
from ._stack import Entry, Operands, Stack, make_stacks

_HALVES = (torch.float16, torch.bfloat16)

Group = Mapping[str, Any]
# (index of a parameter group, dtype) -> factor of the gradients
Scales = Mapping[tuple[int, torch.dtype], Tensor]


class _Plan(NamedTuple):
    """The stacks for the parameters that have a gradient now.

    Attributes:
        params: These parameters.
        kinds: For each parameter group, the index of the first one with equal hyper-parameters.
        stacks: The stacks.
    """

    params: list[Tensor]
    kinds: list[int]
    stacks: list[Stack]


class AbstractStackedRule(AbstractNpuFused):
    """An optimizer whose portable form runs a rule of this package over stacks of parameters.

    Half precision is computed with in float32, and rounded once.
    """

    # What a state starts at, where that is not zero.
    starts_at: ClassVar[Mapping[str, float]] = {}
    _plan: _Plan | None = None

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of the tensors in the state of a group's parameters."""
        del group
        return "exp_avg", "exp_avg_sq"

    @abstractmethod
    def update(self, operands: Operands, group: Group, step: int) -> None:
        """Update parameters and states in place, in their ``step``-th step, counted from one."""

    @property
    def takes_norms(self) -> bool:
        """Whether the update depends on norms, which a shard of a tensor does not give."""
        return False

    def gradient_scales(self) -> Scales:
        """Return what to multiply gradients by; absent is one."""
        return {}

    def update_parameters(self) -> None:
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            check_dense_gradients(type(self).__name__, group["params"])
        scales = self.gradient_scales()
        self._plan = self._current_plan(joins_groups=not scales)
        for stack in self._plan.stacks:
            self._update_stack(stack, scales.get((stack.group_index, stack.dtype)))

    def _update_stack(self, stack: Stack, scale: Tensor | None) -> None:
        step = stack.entries[0]["step"] + 1
        p, gradient, state = stack.gather()
        dtype = torch.float32 if p.dtype in _HALVES else p.dtype
        wide_state = {name: value.to(dtype) for name, value in state.items()}
        wide = Operands(p.to(dtype), gradient.to(dtype), wide_state)
        if scale is not None:
            wide = wide._replace(gradient=wide.gradient * scale.to(gradient.device))
        self.update(wide, self.param_groups[stack.group_index], step)
        if wide.p is not p:
            p.copy_(wide.p)
            for name, value in state.items():
                value.copy_(wide_state[name])
        stack.scatter()
        for entry in stack.entries:
            entry["step"] = step

    def _current_plan(self, *, joins_groups: bool) -> _Plan:
        """Return the stacks of the last step, or new ones if anything about them changed."""
        groups = self.param_groups
        params = [p for group in groups for p in group["params"] if p.grad is not None]
        kinds = self._kinds_of_groups() if joins_groups else list(range(len(groups)))
        plan = self._plan
        if (
            plan is not None
            and len(params) == len(plan.params)
            and all(map(is_, params, plan.params))
            and kinds == plan.kinds
            and all(stack.is_current(self.state) for stack in plan.stacks)
            and all(s.names == self.state_names(groups[s.group_index]) for s in plan.stacks)
        ):
            return plan
        stacks = []
        for kind in dict.fromkeys(kinds):
            joined = [group for group, each in zip(groups, kinds, strict=True) if each == kind]
            names = self.state_names(groups[kind])
            trained = [p for group in joined for p in group["params"] if p.grad is not None]
            pairs = [(p, self._complete_entry(p, names)) for p in trained if p.numel()]
            stacks += make_stacks(pairs, names, kind)
        return _Plan(params, kinds, stacks)

    def _kinds_of_groups(self) -> list[int]:
        """Find groups of equal hyper-parameters: options by parameter make a group of each."""
        first: dict[Any, int] = {}
        return [
            first.setdefault(tuple(_as_key(group[key]) for key in self.hyper_parameters), index)
            for index, group in enumerate(self.param_groups)
        ]

    def _complete_entry(self, p: Tensor, names: Sequence[str]) -> Entry:
        entry: Entry = self.state[p]
        entry["step"] = int(entry.get("step", 0))  # torch's classes count in tensors
        for name in names:
            if name not in entry:
                entry[name] = torch.full_like(p, self.starts_at.get(name, 0))
        return entry

    def check_parameters(self, params: Iterable[Tensor]) -> None:
        """Check that parameters can be trained."""
        params = list(params)
        super().check_parameters(params)
        if self.takes_norms and any(is_sharded(p) or is_flattened(p) for p in params):
            raise ConfigError(
                f"{type(self).__name__} was given parameters that are sharded over ranks; it takes "
                "norms over whole ones. Build it without sharding, or take NpuFusedAdamW."
            )


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean norm of all gradients together, 0-d, on the device of the first."""
    norms = []
    for gradient in gradients:
        dtype = torch.float32 if gradient.dtype in _HALVES else gradient.dtype
        norms.append(torch.linalg.vector_norm(gradient, dtype=dtype))
    norm: Tensor = torch.linalg.vector_norm(torch.stack([each.to(norms[0]) for each in norms]))
    return norm


def _as_key(value: Any) -> Any:
    """Return what two groups have in common if they share a hyper-parameter."""
    if isinstance(value, Tensor):  # not read, which would wait for its device
        return id(value)
    return tuple(value) if isinstance(value, list) else value
