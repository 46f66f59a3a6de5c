"""What the optimizers with a rule of ours share: a step over stacks and blocks."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from mm_npu._errors import ConfigError

from ._arguments import check_dense_gradients
from ._compiled import check_can_compile, run_compiled
from ._named import AbstractNamedOptimizer
from ._operands import Layout, is_flattened, is_sharded
from ._rules import NormRule, Options, Rule, Scratch, run_in_blocks, run_norms_in_blocks
from ._step_count import int_step
from ._units import AbstractUnit, Entry, make_units


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
    # What a state starts at, where that is not zero.
    starts_at: ClassVar[Mapping[str, float]] = {}

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], *, compiled: bool) -> None:
        self.check_group(defaults)
        self.compiled = compiled
        self._plans: dict[int, _Plan] = {}
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
        """Say, for each group's units, what to multiply gradients of a dtype by; one if absent."""
        return [{} for _ in units]

    def update_parameters(self) -> None:
        """Update the parameters that have a gradient.

        Raises:
            ConfigError: If a gradient is sparse.
        """
        plans = [self._plan(index, group) for index, group in enumerate(self.param_groups)]
        try:
            self._run(plans)
        except RuntimeError:
            # Looked at only here, and when a plan is made: a look at each gradient takes time.
            for plan in plans:
                check_dense_gradients(type(self).__name__, plan.params)
            raise

    def _run(self, plans: Sequence["_Plan"]) -> None:
        scales = self.gradient_scales([plan.units for plan in plans])
        for group, plan, scale in zip(self.param_groups, plans, scales, strict=True):
            for unit in plan.units:
                options = dict(self.options(group, unit.advance_step()))
                options["scale"] = scale.get(unit.dtype)  # None: one
                self._update(unit, options, plan.scratch)

    def _update(self, unit: AbstractUnit, options: Options, scratch: Scratch) -> None:
        operands = unit.gather()
        rule = type(self).rule
        if self.compiled:
            run_compiled(rule, operands, options, self.varying)
        elif callable(rule):
            run_in_blocks(rule, operands, options, scratch)
        else:
            run_norms_in_blocks(rule, operands, options, scratch)
        unit.scatter()

    def _plan(self, index: int, group: dict[str, Any]) -> "_Plan":
        params = [p for p in group["params"] if p.grad is not None]
        names = self.state_names(group)
        plan = self._plans.get(index)
        if plan is None or not plan.is_current(params, names, self.state):
            check_dense_gradients(type(self).__name__, params)
            shape = None if callable(type(self).rule) else self.operand_shape
            layout = Layout(names, shape, self.equal_steps)
            entries = [self._complete_entry(p, names) for p in params]
            plan = self._plans[index] = _Plan(params, entries, layout)
        return plan

    def _complete_entry(self, p: Tensor, names: Sequence[str]) -> Entry:
        entry: Entry = self.state[p]
        entry.setdefault("step", 0)
        for name in names:
            if name not in entry:
                entry[name] = torch.full_like(p, self.starts_at.get(name, 0))
        return entry

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with hyper-parameters of their own; see ``torch.optim.Optimizer``.

        Raises:
            ConfigError: If a hyper-parameter is out of range, a parameter is not real, or the rule
                takes norms of a parameter that is sharded over ranks.
        """
        super().add_param_group(param_group)
        params = self.param_groups[-1]["params"]
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
            ConfigError: If it comes from an optimizer that computes something else.
        """
        state = {index: int_step(entry) for index, entry in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": state})

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in self.settings}
        return {**Optimizer.__getstate__(self), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._plans = {}


class _Plan:
    """The units of one group, for the parameters that have a gradient now."""

    def __init__(self, params: Sequence[Tensor], entries: Sequence[Entry], layout: Layout) -> None:
        self.params, self.layout = params, layout
        self.scratch = Scratch()
        self.units = make_units(list(zip(params, entries, strict=True)), layout)

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
