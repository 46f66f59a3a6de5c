"""What the optimizers with a rule of ours share: a step over stacks and blocks."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from mm_npu._errors import ConfigError

from ._arguments import check_dense_gradients
from ._batches import in_equal_steps, make_batches
from ._compiled import check_can_compile, run_compiled
from ._fused import can_fuse
from ._named import AbstractNamedOptimizer
from ._operands import Layout, block_size, is_flattened, is_sharded
from ._rules import NormRule, Options, Rule, Scratch, run_in_blocks, run_norms_in_blocks
from ._step_count import int_step
from ._units import AbstractUnit, Buffers, Entry, make_units


class AbstractBlockwiseOptimizer(AbstractNamedOptimizer):
    """An optimizer whose portable form runs a rule of ours over stacks and blocks.

    A concrete class sets the rule, and says which tensors a parameter's state has and which numbers
    the rule reads; ``settings`` names the attributes that a copy must keep.
    """

    own_keywords = ("strict", "compiled")
    rule: ClassVar[Rule | NormRule]
    settings: ClassVar[tuple[str, ...]] = ("compiled",)
    # The options that change from step to step.
    varying: ClassVar[tuple[str, ...]] = ("lr",)
    # Whether the update depends on the number of the step, so that a stack must share it.
    equal_steps: ClassVar[bool] = False
    # Whether a fused kernel does most of the rule: larger blocks stay in the cache between so few
    # passes, and leave less to Python.
    has_one_kernel: ClassVar[bool] = False
    # What a state starts at, where that is not zero.
    starts_at: ClassVar[Mapping[str, float]] = {}

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], *, compiled: bool) -> None:
        self.check_group(defaults)
        self.compiled = compiled
        self._forget_plans()
        if compiled:
            check_can_compile(type(self).rule)
        super().__init__(params, defaults)

    @abstractmethod
    def state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the tensors, each of the parameter's shape, in the state of a group's parameters."""

    @abstractmethod
    def options(self, group: Mapping[str, Any], step: int) -> Options:
        """Give the numbers that the rule reads, for a unit in its ``step``-th step."""

    @staticmethod
    def operand_shape(count: int, p: Tensor) -> tuple[int, ...]:
        """Give the shape in which a rule with norms wants ``count`` parameters like ``p``."""
        return count, p.numel()

    def gradient_scales(
        self, units: Sequence[Sequence[AbstractUnit]]
    ) -> list[Mapping[torch.dtype, Tensor]]:
        """Say, for the units of each group, what to multiply gradients of a dtype by.

        Groups that were joined are one here. A dtype that is absent is multiplied by one.
        """
        return [{} for _ in units]

    def update_parameters(self) -> None:
        """Update the parameters that have a gradient.

        Raises:
            ConfigError: If a gradient is sparse.
        """
        families = self._join_groups()
        plans = [self._plan(index, groups) for index, groups in enumerate(families)]
        try:
            self._run([groups[0] for groups in families], plans)
        except RuntimeError:
            # Looked at only here, and when a plan is made: a look at each gradient takes time.
            for plan in plans:
                check_dense_gradients(type(self).__name__, plan.params)
            raise

    def _join_groups(self) -> list[list[dict[str, Any]]]:
        """Join the groups of equal hyper-parameters, which are updated like one.

        A configuration with options by parameter makes a group of each.
        """
        if not self.joins_groups or len(self.param_groups) == 1:
            return [[group] for group in self.param_groups]
        families: dict[Any, list[dict[str, Any]]] = {}
        for group in self.param_groups:
            values = [group[key] for key in self.group_keys]
            families.setdefault(tuple(map(_as_key, values)), []).append(group)
        return list(families.values())

    @property
    def joins_groups(self) -> bool:
        """Whether groups of equal hyper-parameters are updated like one."""
        return True

    def _run(self, groups: Sequence[Mapping[str, Any]], plans: Sequence["_Plan"]) -> None:
        scales = self.gradient_scales([plan.units for plan in plans])
        # Rules with norms keep a direction for each tensor of a call, which must stay in the cache.
        in_batches = self.compiled and callable(type(self).rule)
        for group, plan, scale in zip(groups, plans, scales, strict=True):
            for units in plan.batches() if in_batches else plan.singly():
                self._update(units, self._complete_options(group, units, scale))

    def _complete_options(
        self,
        group: Mapping[str, Any],
        units: Sequence[AbstractUnit],
        scale: Mapping[torch.dtype, Tensor],
    ) -> Options:
        number, *_ = [unit.advance_step() for unit in units]
        p, factor = units[0].params[0], scale.get(units[0].dtype)
        return {
            **self.options(group, number),
            # A norm over devices lies on one of them.
            "scale": None if factor is None else factor.to(p.device),
            "fused": not self.compiled and can_fuse(p),
        }

    def _update(self, units: Sequence[AbstractUnit], options: Options) -> None:
        if self.compiled:
            run_compiled(type(self).rule, [u.gather() for u in units], options, self.varying)
        else:
            self._update_in_blocks(units[0], options)
        for unit in units:
            unit.scatter()

    def _update_in_blocks(self, unit: AbstractUnit, options: Options) -> None:
        operands = unit.gather()
        rule, size = type(self).rule, block_size(operands.p)
        if options["fused"] and self.has_one_kernel:
            size *= 2
        if callable(rule):
            run_in_blocks(rule, operands, options, self._scratch, size)
        else:
            run_norms_in_blocks(rule, operands, options, self._scratch, size)

    def _forget_plans(self) -> None:
        self._plans: dict[int, _Plan] = {}
        # Of all groups together: there may be one for each parameter.
        self._scratch, self._buffers = Scratch(), Buffers()

    def _plan(self, index: int, groups: Sequence[Mapping[str, Any]]) -> "_Plan":
        params = [p for group in groups for p in group["params"] if p.grad is not None]
        names = self.state_names(groups[0])
        plan = self._plans.get(index)
        if plan is None or not plan.is_current(params, names, self.state):
            check_dense_gradients(type(self).__name__, params)
            shape = None if callable(type(self).rule) else self.operand_shape
            layout = Layout(names, shape, self.equal_steps)
            entries = [self._complete_entry(p, names) for p in params]
            plan = self._plans[index] = _Plan(params, entries, layout, self._buffers)
        return plan

    def _complete_entry(self, p: Tensor, names: Sequence[str]) -> Entry:
        entry: Entry = self.state[p]
        entry.setdefault("step", 0)
        for name in names:
            if name not in entry:
                entry[name] = torch.full_like(p, self.starts_at.get(name, 0))
        return entry

    def check_parameters(self, params: Iterable[Tensor]) -> None:
        """Check that parameters can be trained.

        Raises:
            ConfigError: If one is not real, or sharded over ranks while the rule takes norms of it.
        """
        params = list(params)
        super().check_parameters(params)
        if self.takes_norms and any(is_sharded(p) or is_flattened(p) for p in params):
            raise ConfigError(
                f"{type(self).__name__} was given parameters that are sharded over ranks; it takes "
                "norms over whole ones. Build it without sharding, or take NpuFusedAdamW."
            )

    @property
    def takes_norms(self) -> bool:
        """Whether an update depends on norms, which this rank's part of a tensor does not give."""
        return not callable(type(self).rule)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class, of ``torch_npu``'s class of this name, or of torch's twin.

        Args:
            state_dict: What ``state_dict`` of one of them gave. Not changed.

        Raises:
            ConfigError: If it lacks a hyper-parameter of this one, or maximizes.
        """
        state = {index: int_step(entry) for index, entry in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": state})

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in self.settings}
        return {**Optimizer.__getstate__(self), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget_plans()


def _as_key(value: Any) -> Any:
    """Return what two groups have alike if they have a hyper-parameter alike."""
    if isinstance(value, Tensor):  # not read: that would wait for its device
        return id(value)
    return tuple(value) if isinstance(value, list) else value


class _Plan:
    """The units of groups that are alike, for the parameters that have a gradient now."""

    def __init__(
        self,
        params: Sequence[Tensor],
        entries: Sequence[Entry],
        layout: Layout,
        buffers: Buffers,
    ) -> None:
        self.params, self.layout = params, layout
        self.units = make_units(list(zip(params, entries, strict=True)), layout, buffers)
        self._batches: list[list[AbstractUnit]] | None = None

    def singly(self) -> Iterator[Sequence[AbstractUnit]]:
        """Yield each unit alone."""
        return ([unit] for unit in self.units)

    def batches(self) -> Iterator[Sequence[AbstractUnit]]:
        """Yield what a compiled step updates in one call each."""
        if self._batches is None:
            self._batches = make_batches(self.units)
        for batch in self._batches:
            yield from in_equal_steps(batch) if self.layout.equal_steps else [batch]

    def is_current(
        self, params: Sequence[Tensor], names: tuple[str, ...], state: Mapping[Tensor, Entry]
    ) -> bool:
        """Say whether the plan fits these parameters and what ``state`` holds of them."""
        return (
            len(params) == len(self.params)
            and all(map(is_, params, self.params))
            and names == self.layout.names
            and all(unit.is_current(state) for unit in self.units)
        )
