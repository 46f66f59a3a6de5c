"""Call a function on the main process, and broadcast its result or error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import mm_dist

from . import errors
from .errors import MMRunnerError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_on_main"]

Result = TypeVar("Result")


def run_on_main(function: Callable[[], Result]) -> Result:
    """Call ``function`` on the main process, and broadcast its result. Every process calls this.

    A process that failed alone would leave the others waiting for it in their next collective.

    Args:
        function: Returns something that can be pickled; keep it small.

    Returns:
        What ``function`` returned on the main process, on every process.

    Raises:
        Exception: On the main process what ``function`` raised. On the others the same if it is an
            error of mm-runner, else an :class:`MMRunnerError` with its text.

    Example:
        >>> run_on_main(lambda: 1 + 1)
        2
    """
    result: Any = None
    failure: Exception | None = None
    told: tuple[str, str] | None = None  # to the others
    if mm_dist.is_main_process():
        try:
            result = function()
        except MMRunnerError as error:
            failure, told = error, (type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the others wait
            text = f"The main process failed with {type(error).__name__}: {error}"
            failure, told = error, ("MMRunnerError", text)
    outcome = [result, told]
    mm_dist.broadcast_object_list(outcome)
    if failure is not None:
        raise failure
    if outcome[1] is not None:
        name, text = outcome[1]
        raise getattr(errors, name, MMRunnerError)(text)
    return outcome[0]  # type: ignore[no-any-return]
