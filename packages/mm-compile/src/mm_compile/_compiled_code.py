"""Compiled code, and the regions that share it."""

import logging
import re
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import torch

from . import _torch_private as torch_private
from ._backend import GuardedBackend
from ._config import CompileConfig
from ._errors import RecompileLimitError
from ._failure import Failure
from ._graph_breaks import GraphBreak, add_breaks
from ._inputs import Traits, describe_change
from ._method import copy_function
from ._torch import shares_code, takes_version_limit
from ._words import counted

_logger = logging.getLogger(__name__)

# Training or evaluation, whether gradients are recorded, whether inside a data-parallel wrapper
# (graphs end where its gradient buckets do), and inference mode, under which dynamo compiles again.
Mode = tuple[bool, bool, bool, bool]

# Regions that share code but compile again when they first run. Further regions that have not run
# yet get separate code, so that they do not use up dynamo's limit for one code object.
_MAX_LATE_RECOMPILES = 2
# Some of dynamo's guards are long lists.
_MAX_GUARD = 120
# Some torch versions write a function's argument as L['self'].
_LOCAL = re.compile(r"L\['(?P<name>\w+)'\]")


def mode_of(module: Any) -> Mode:
    """Return the mode of a call of ``module`` made now."""
    records = torch.is_grad_enabled()
    is_wrapped = records and torch_private.active_ddp() is not None
    return (module.training, records, is_wrapped, torch.is_inference_mode_enabled())


class CompiledCode:
    """Code compiled for one kind of regions in one mode.

    Training and evaluation have separate code, and separate budgets of recompilations.

    Attributes:
        backend: Compiles and counts the graphs.
        run: ``run(module, *args, **kwargs)``, compiled.
        is_dynamic: Whether every dimension is compiled as dynamic.
        num_recompiles: Recompilations so far.
        callers: Names of the regions that have run the code.
        changes: What changed before each recompilation.
        breaks: Graph breaks.
        has_no_graph: Whether the code ran and dynamo captured no graph.
    """

    def __init__(
        self, function: FunctionType, config: CompileConfig, *, is_dynamic: bool = False
    ) -> None:
        keywords = dict(config.keywords)
        if is_dynamic:
            keywords["dynamic"] = True
        self.is_dynamic = keywords.get("dynamic") is True
        self._changes_hook_guards = False
        self.backend = GuardedBackend(
            keywords,
            dynamic=keywords.get("dynamic"),
            catches=config.on_error == "eager",
            counts_runs=config.target != ("forward",),
            code_cache=config.code_cache,
            on_compile=self._begin_hook_guards if shares_code() else None,
        )
        rest = {name: keywords[name] for name in keywords.keys() - {"backend", "mode", "options"}}
        if takes_version_limit() and config.num_versions > torch_private.version_limit():
            rest["recompile_limit"] = config.num_versions
        self.run = torch.compile(function, backend=self.backend, **rest)
        self.num_recompiles = 0
        self.callers: set[str] = set()
        self.changes: list[str] = []
        self.breaks: list[GraphBreak] = []
        self.has_no_graph = False
        self._history: list[Traits] = []

    def end_hook_guards(self) -> None:
        """End what compiling a graph has begun; called after each call."""
        if self._changes_hook_guards:
            self._changes_hook_guards = False
            torch_private.end_hook_guards()

    def remember(self, inputs: Traits) -> str | None:
        """Remember the inputs that the code was compiled for.

        Returns:
            What changed since earlier compilations; None for the first one.
        """
        is_first = not self._history
        change = None if is_first else describe_change(self._history, inputs)
        self._history.append(inputs)
        return None if is_first else change or _describe_other_change()

    def _begin_hook_guards(self) -> None:
        if not self._changes_hook_guards:
            self._changes_hook_guards = torch_private.begin_hook_guards()


@dataclass
class RegionKind:
    """Regions that share code: one class, and parameters of the same shapes.

    Attributes:
        function: Their function, ``function(module, *args, **kwargs)``.
        config: The checked config.
        codes: The compiled code of each mode.
        num_past_graphs: Graphs of code that was replaced by dynamic code.
        num_late_recompiles: Regions that compiled again when they first ran.
        spent: Why all run eagerly, once their budget is spent.
    """

    function: FunctionType
    config: CompileConfig
    codes: dict[Mode, CompiledCode] = field(default_factory=dict)
    num_past_graphs: int = 0
    num_late_recompiles: int = 0
    spent: Failure | None = None

    def code(self, mode: Mode) -> CompiledCode:
        """Return the code of a mode; it is compiled when it first runs."""
        if mode not in self.codes:
            self.codes[mode] = CompiledCode(copy_function(self.function), self.config)
        return self.codes[mode]

    def separate_code(self) -> CompiledCode:
        """Return new code of the same function, which raises where it does not compile."""
        return CompiledCode(copy_function(self.function), replace(self.config, on_error="raise"))

    def for_new_region(self) -> "RegionKind":
        """Return the kind of a region that has not run yet: this, or a separate one."""
        if self.num_late_recompiles < _MAX_LATE_RECOMPILES:
            return self
        return RegionKind(self.function, self.config)

    def count_recompiles(self) -> int:
        """Return the recompilations in all modes."""
        return sum(len(code.changes) for code in self.codes.values())

    def count_graphs(self) -> int:
        """Return the graphs captured in all modes."""
        return self.num_past_graphs + sum(code.backend.num_graphs for code in self.codes.values())

    def after_call(
        self, mode: Mode, label: str, inputs: Traits, before: tuple[int, int], *, is_first: bool
    ) -> Failure | None:
        """Account for what a call compiled.

        Args:
            mode: The mode of the call.
            label: The region, for messages.
            inputs: The call's inputs.
            before: The numbers of graphs and graph breaks before the call.
            is_first: Whether the region ran this code for the first time.

        Returns:
            Why the region has to run eagerly, or None.

        Raises:
            RecompileLimitError: If the budget is spent and ``on_recompile`` is ``raise``.
        """
        code = self.codes[mode]
        backend = code.backend
        num_graphs, num_breaks = before
        add_breaks(code.breaks, backend.break_reasons[num_breaks:])
        code.has_no_graph = not backend.num_graphs
        if is_first and code.has_no_graph:
            _logger.warning(
                "compile: %s has no graph: dynamo captured nothing, and it runs eagerly.", label
            )
        failure, backend.failure = backend.failure, None
        if failure is not None or backend.num_graphs == num_graphs:
            return failure
        change = code.remember(inputs)
        if change is None:
            return None
        if is_first:
            # Not recompiled: it shares code with regions that it differs from.
            self.num_late_recompiles += 1
            return None
        code.num_recompiles += 1
        code.changes.append(change)
        _logger.debug("compile: %s was compiled again; %s", label, change)
        if code.num_recompiles <= self.config.recompile_limit:
            return None
        return self._spend(mode, change, label)

    def _spend(self, mode: Mode, change: str, label: str) -> Failure | None:
        code = self.codes[mode]
        excess = (
            f"it was compiled again {counted(code.num_recompiles, 'time')}, recompile_limit is "
            f"{self.config.recompile_limit}; the last time because {change}"
        )
        if self.config.on_recompile == "raise":
            raise RecompileLimitError(
                f"compile: {label}: {excess}. Set on_recompile to 'dynamic' or 'eager', pad the "
                "inputs to fewer sizes, or raise recompile_limit."
            )
        if self.config.on_recompile == "dynamic" and not code.is_dynamic:
            _logger.warning("compile: %s: %s. It now compiles for any size.", label, excess)
            function = copy_function(self.function)
            self.codes[mode] = dynamic = CompiledCode(function, self.config, is_dynamic=True)
            dynamic.changes, dynamic.breaks = code.changes, code.breaks
            self.num_past_graphs += code.backend.num_graphs
            return None
        self.spent = Failure(excess)
        return self.spent


def _describe_other_change() -> str:
    text = "nothing in its inputs changed, but a value that its code reads elsewhere"
    # Dynamo writes the guard between a number and the code that reads the value.
    guard = torch_private.last_recompile_reason().partition(": ")[2]
    guard = guard.partition("\n")[0].partition("#")[0].strip()
    guard = _LOCAL.sub(r"\g<name>", guard)
    return f"{text} ({guard[:_MAX_GUARD]} no longer holds)" if guard else text
