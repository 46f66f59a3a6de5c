"""How often a region may be compiled again, and what happens beyond."""

import logging

from ._errors import RecompileLimitError
from ._failure import Failure
from ._inputs import Traits
from ._unit import Kind, Mode, Unit

_logger = logging.getLogger(__name__)


def count_compilation(
    kind: Kind, unit: Unit, mode: Mode, inputs: Traits, label: str, *, is_newcomer: bool
) -> Failure | None:
    """Count that code was compiled in a call, and apply the policy if that was once too often.

    Args:
        kind: The regions that share the code.
        unit: The code.
        mode: The mode that it is for.
        inputs: What the call was given.
        label: The region that was called, for messages.
        is_newcomer: Whether that region ran the code for the first time.

    Returns:
        Why the regions of this kind have to run eagerly; None if they do not.

    Raises:
        RecompileLimitError: If the policy is to raise.
    """
    change = unit.remember(inputs)
    if change is None:
        return None
    if is_newcomer:
        # Not compiled again, but like others of its kind only at first sight.
        kind.num_strangers += 1
        return None
    unit.num_recompiles += 1
    change = change or "nothing in its inputs (a value that its code reads elsewhere)"
    unit.changes.append(change)
    _logger.debug("compile: %s was compiled again; %s", label, change)
    if unit.num_recompiles <= kind.config.recompile_limit:
        return None
    return _apply_policy(kind, unit, mode, change, label)


def _apply_policy(kind: Kind, unit: Unit, mode: Mode, change: str, label: str) -> Failure | None:
    excess = (
        f"it was compiled again {unit.num_recompiles} times, recompile_limit is "
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
