"""Compiled code, and the regions that share it."""

import logging
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from . import _torch_private as torch_private
from ._backend import GuardedBackend
from ._config import CompileConfig
from ._errors import RecompileLimitError
from ._failure import Failure, GraphBreak, add_breaks
from ._method import copy_function
from ._torch import takes_version_limit
from ._words import counted

_logger = logging.getLogger(__name__)

# Training or evaluation, whether gradients are recorded, whether inside a data-parallel wrapper
# (graphs end where its gradient buckets do), and inference mode, under which dynamo compiles again.
Mode = tuple[bool, bool, bool, bool]

# Regions that share code but compile again when they first run. Further regions that have not run
# yet get separate code, so that they do not use up dynamo's limit for one code object.
_MAX_LATE_RECOMPILES = 2


def mode_of(module: Any) -> Mode:
    """Return the mode of a call of ``module`` made now."""
    records = torch.is_grad_enabled()
    is_wrapped = records and torch_private.active_ddp() is not None
    return (module.training, records, is_wrapped, torch.is_inference_mode_enabled())


class CompiledCode:
    """Code compiled for one kind of regions in one mode.

    Training and evaluation have separate code, and separate budgets of recompilations.
    """

    def __init__(
        self, function: FunctionType, config: CompileConfig, *, is_dynamic: bool = False
    ) -> None:
        keywords = dict(config.keywords)
        if is_dynamic:
            keywords["dynamic"] = True
        self.is_dynamic = keywords.get("dynamic") is True
        self.backend = GuardedBackend(
            keywords, config.code_cache, catches=config.on_error == "eager"
        )
        rest = {name: keywords[name] for name in keywords.keys() - {"backend", "mode", "options"}}
        if takes_version_limit() and config.num_versions > torch_private.version_limit():
            rest["recompile_limit"] = config.num_versions
        self.run = torch.compile(function, backend=self.backend, **rest)
        self.num_recompiles = 0
        self.callers: set[str] = set()
        self.changes: list[str] = []
        self.breaks: list[GraphBreak] = []
        self.has_compiled = False
        self.has_no_graph = False


@dataclass
class RegionKind:
    """Regions that share code: one class, and parameters of the same shapes."""

    function: FunctionType
    config: CompileConfig
    codes: dict[Mode, CompiledCode] = field(default_factory=dict)
    backends: list[GuardedBackend] = field(default_factory=list)
    num_late_recompiles: int = 0
    spent: Failure | None = None

    def code(self, mode: Mode) -> CompiledCode:
        """Return the code of a mode; it is compiled when it first runs."""
        if mode not in self.codes:
            self.codes[mode] = CompiledCode(copy_function(self.function), self.config)
            self.backends.append(self.codes[mode].backend)
        return self.codes[mode]

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
        return sum(backend.num_graphs for backend in self.backends)

    def after_call(
        self, mode: Mode, label: str, before: tuple[int, int], *, is_first: bool
    ) -> Failure | None:
        """Account for what a call compiled."""
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
        if not code.has_compiled:
            code.has_compiled = True
            return None
        if is_first:
            # Not recompiled: it shares code with regions that it differs from.
            self.num_late_recompiles += 1
            return None
        change = torch_private.last_recompile_reason()
        code.num_recompiles += 1
        code.changes.append(change)
        _logger.debug("compile: %s was compiled again: %s", label, change)
        if code.num_recompiles <= self.config.recompile_limit:
            return None
        return self._spend(mode, change, label)

    def _spend(self, mode: Mode, change: str, label: str) -> Failure | None:
        code = self.codes[mode]
        excess = (
            f"it was compiled again {counted(code.num_recompiles, 'time')}, recompile_limit is "
            f"{self.config.recompile_limit}; the last failed guard: {change}"
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
            self.backends.append(dynamic.backend)
            dynamic.changes, dynamic.breaks = code.changes, code.breaks
            return None
        self.spent = Failure(excess)
        return self.spent
