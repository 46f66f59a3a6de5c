"""How often a region may be compiled again, and what happens beyond."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._counted import counted
from ._errors import RecompileLimitError
from ._failure import Failure
from ._inputs import Traits, describe_inputs
from ._unit import Kind, Mode, Unit

_logger = logging.getLogger(__name__)
# Some conditions of dynamo's are long lists; their beginning names the value.
_MAX_GUARD = 120
# Some torch versions write a function's argument as L['self'].
_LOCAL = re.compile(r"L\['(?P<name>\w+)'\]")


@dataclass(frozen=True)
class Call:
    """A call of a region that has run compiled code.

    Attributes:
        mode: The mode it ran in.
        label: The region, for messages.
        args: Positional arguments.
        kwargs: Keyword arguments.
        is_newcomer: Whether the region ran this code for the first time.
    """

    mode: Mode
    label: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_newcomer: bool


def look_at(
    kind: Kind, unit: Unit, call: Call, method: Callable[..., Any], before: tuple[int, int]
) -> Failure | None:
    """Look at what was compiled in a call, and count it.

    Args:
        kind: The regions that share the code.
        unit: The code.
        call: The call.
        method: The eager method, which names the inputs.
        before: How many graphs and graph breaks there were when the call began.

    Returns:
        Why the region has to run eagerly; None if it does not.

    Raises:
        RecompileLimitError: If it was compiled once too often, and the policy is to raise.
    """
    backend = unit.backend
    num_graphs, num_breaks = before
    unit.note_breaks(num_breaks)
    unit.is_graphless = not backend.num_graphs
    if call.is_newcomer and unit.is_graphless:
        _logger.warning(
            "compile: %s has no graph: dynamo captured nothing, and it runs as it is.", call.label
        )
    failure, backend.failure = backend.failure, None
    if failure is not None or backend.num_graphs == num_graphs:
        return failure
    return _count(kind, unit, call, describe_inputs(method, call.args, call.kwargs))


def _count(kind: Kind, unit: Unit, call: Call, inputs: Traits) -> Failure | None:
    change = unit.remember(inputs)
    if change is None:
        return None
    if call.is_newcomer:
        # Not compiled again, but like others of its kind only at first sight.
        kind.num_strangers += 1
        return None
    unit.num_recompiles += 1
    change = change or _describe_change_elsewhere()
    unit.changes.append(change)
    _logger.debug("compile: %s was compiled again; %s", call.label, change)
    if unit.num_recompiles <= kind.config.recompile_limit:
        return None
    return _apply_policy(kind, unit, call.mode, change, call.label)


def _describe_change_elsewhere() -> str:
    from torch._dynamo import utils  # noqa: PLC0415 - imports dynamo

    told = "nothing in its inputs changed, but a value that its code reads elsewhere"
    # Newer ones keep why they compiled last: "0/1: self.flag == 1   # where the code reads it".
    list_metrics = getattr(utils, "get_compilation_metrics", list)
    reason = getattr((list_metrics() or [None])[-1], "recompile_reason", None)
    guard = (reason or "").partition(": ")[2].partition("\n")[0].partition("#")[0].strip()
    guard = _LOCAL.sub(r"\g<name>", guard)
    return f"{told} ({guard[:_MAX_GUARD]} no longer holds)" if guard else told


def _apply_policy(kind: Kind, unit: Unit, mode: Mode, change: str, label: str) -> Failure | None:
    excess = (
        f"it was compiled again {counted(unit.num_recompiles, 'time')}, recompile_limit is "
        f"{kind.config.recompile_limit}; the last time because {change}"
    )
    if kind.config.on_recompile == "raise":
        raise RecompileLimitError(
            f"compile: {label}: {excess}. Set on_recompile to 'dynamic' or 'eager', pad the inputs "
            "to fewer sizes (BucketingCollate), or raise recompile_limit."
        )
    if kind.config.on_recompile == "dynamic" and not unit.is_dynamic:
        _logger.warning("compile: %s: %s. It now compiles for any size.", label, excess)
        kind.make_dynamic(mode)
        return None
    kind.excess = Failure(excess)
    return kind.excess
