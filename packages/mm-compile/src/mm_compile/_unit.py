"""One piece of compiled code, and the kinds of regions that share such pieces."""

from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import torch

from ._backend import GuardedBackend
from ._code import copied
from ._config import CompileConfig
from ._failure import Failure
from ._inputs import Traits, describe_nearest_change
from ._receipt._breaks import GraphBreak, add_breaks
from ._surroundings import HookGuards, active_ddp
from ._torch import takes_version_limit, version_limit

# Whether the module trains, whether gradients are recorded, and whether those of a data-parallel
# wrapper are: its graphs end where the gradient buckets do, code compiled before wrapping does not.
# Last, whether inference mode is on, under which dynamo compiles anew.
Mode = tuple[bool, bool, bool, bool]

# Modules that find code of their kind and compile anew when they first run, since they differ in
# what it reads or is given. After this many, every module that has not run yet gets code of its
# own, lest they use up dynamo's limit for one code object.
_MAX_STRANGERS = 2


class Unit:
    """Code compiled for one kind of regions in one mode.

    Training and evaluation are different units, so that the budget of one is not spent by the
    other.

    Attributes:
        backend: What compiles and counts its graphs.
        hook_guards: Begun by the backend; whoever calls ``run`` ends it.
        run: ``run(module, *args, **kwargs)``, compiled.
        is_dynamic: Whether every dimension is compiled as one that changes.
        num_recompiles: How often it was compiled for inputs other than the first ones.
        callers: Names of the regions that have run it.
        changes: What changed when its mode was compiled again, each time.
        breaks: Where capturing it stopped.
        is_graphless: Whether it ran, and dynamo captured nothing.
    """

    def __init__(
        self, function: FunctionType, config: CompileConfig, *, is_dynamic: bool = False
    ) -> None:
        self.hook_guards = HookGuards()
        keywords = dict(config.keywords)
        if is_dynamic:
            keywords["dynamic"] = True
        self.is_dynamic = keywords.get("dynamic") is True
        self.backend = GuardedBackend(
            keywords,
            dynamic=keywords.get("dynamic"),
            catches=config.on_error == "eager",
            counts_runs=config.target != ("forward",),
            code_cache=config.code_cache,
            hook_guards=self.hook_guards,
        )
        rest = {name: keywords[name] for name in keywords.keys() - {"backend", "mode", "options"}}
        if takes_version_limit() and config.num_versions > version_limit():
            rest["recompile_limit"] = config.num_versions
        self.run = torch.compile(function, backend=self.backend, **rest)
        self.num_recompiles = 0
        self.callers: set[str] = set()
        self.changes: list[str] = []
        self.breaks: list[GraphBreak] = []
        self.is_graphless = False
        self._history: list[Traits] = []

    def remember(self, inputs: Traits) -> str | None:
        """Remember what it was compiled for.

        Returns:
            What changed since it was compiled before; empty if nothing did in the inputs; None if
            it was compiled for the first time.
        """
        is_first = not self._history
        change = "" if is_first else describe_nearest_change(self._history, inputs)
        self._history.append(inputs)
        return None if is_first else change or ""

    def note_breaks(self, start: int) -> None:
        """Keep the graph breaks that dynamo has found since there were ``start`` of them."""
        add_breaks(self.breaks, self.backend.break_reasons[start:])


@dataclass
class Kind:
    """Regions that run the same code: one class, and parameters of the same shapes.

    Attributes:
        function: What they run, as ``function(module, *args, **kwargs)``.
        config: The checked config.
        units: The compiled code of each mode that has occurred.
        num_past_graphs: Graphs of code that was dropped for code of any size.
        num_strangers: Regions that compiled anew when they first ran.
        excess: Why none of them runs compiled code any more, once their common budget is spent.
    """

    function: FunctionType
    config: CompileConfig
    units: dict[Mode, Unit] = field(default_factory=dict)
    num_past_graphs: int = 0
    num_strangers: int = 0
    excess: Failure | None = None

    def unit(self, mode: Mode) -> Unit:
        """Return the code of a mode; it is compiled when it first runs."""
        if mode not in self.units:
            self.units[mode] = Unit(copied(self.function), self.config)
        return self.units[mode]

    def twin(self) -> Unit:
        """Make code that is compiled of the same function, for nobody's use but the caller's."""
        return Unit(copied(self.function), replace(self.config, on_error="raise"))

    def make_dynamic(self, mode: Mode) -> None:
        """Compile a mode anew, for dimensions that change, with a budget of its own."""
        past = self.units[mode]
        self.units[mode] = unit = Unit(copied(self.function), self.config, is_dynamic=True)
        # The code is dropped, what is told of it is not.
        unit.changes, unit.breaks = past.changes, past.breaks
        self.num_past_graphs += past.backend.num_graphs

    def for_newcomer(self) -> "Kind":
        """Return the kind that a region which has not run yet belongs to: this, or one alone."""
        if self.num_strangers < _MAX_STRANGERS:
            return self
        return Kind(self.function, self.config)

    def count_recompiles(self) -> int:
        """Count the recompilations of every mode."""
        return sum(len(unit.changes) for unit in self.units.values())

    def count_graphs(self) -> int:
        """Count the graphs captured in every mode."""
        num_graphs = sum(unit.backend.num_graphs for unit in self.units.values())
        return self.num_past_graphs + num_graphs


def mode_of(module: Any) -> Mode:
    """Return the mode that a call of ``module`` would run in now."""
    records = torch.is_grad_enabled()
    is_wrapped = records and active_ddp() is not None
    return (module.training, records, is_wrapped, torch.is_inference_mode_enabled())
