"""Tell which losses were not finite when the optimizer wrapper gives up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mm_amp import NonFiniteError

if TYPE_CHECKING:
    from mm_runner.reporting import MessageHub

__all__ = ["naming_losses"]


@contextmanager
def naming_losses(message_hub: MessageHub) -> Iterator[None]:
    """Add the names of losses to a ``NonFiniteError`` raised within the block.

    The optimizer wrapper sees their sum only. What the failing step itself would have logged is
    lost with it; the names are those of the step before, which was skipped as well unless one
    skipped step is enough.

    Args:
        message_hub: Has the losses of the steps so far.
    """
    try:
        yield
    except NonFiniteError as error:
        newest = message_hub.newest("train").items()
        bad = ", ".join(f"{name} {value:g}" for name, value in newest if not math.isfinite(value))
        if not bad:
            raise
        raise NonFiniteError(
            f"{error} In the step before, these were not finite: {bad}."
        ) from error
