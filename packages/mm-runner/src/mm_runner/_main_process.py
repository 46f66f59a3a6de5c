"""Call a function on the main process or on all; if it fails on one, all raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import mm_dist

from . import errors
from .errors import MMRunnerError

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


def run_on_main(function: Callable[[], Result]) -> Result:
    """Call ``function`` on the main process, and return its result on every process.

    Raises:
        Exception: As :func:`run_on_all` does.

    Example:
        >>> run_on_main(lambda: 1 + 1)
        2
    """
    results = run_on_all(lambda: function() if mm_dist.is_main_process() else None)
    return results[0]  # type: ignore[return-value]


def run_on_all(function: Callable[[], Result]) -> list[Result]:
    """Call ``function`` on every process, and return the results of all in rank order.

    A process that failed alone would leave the others waiting for it in their next collective.

    Args:
        function: Returns something that can be pickled; keep it small.

    Raises:
        Exception: Where ``function`` failed, what it raised. On the others the same if it is an
            error of mm-runner, else an :class:`MMRunnerError` with its text.
    """
    result: Any = None
    failure: Exception | None = None
    told: tuple[str, str] | None = None  # to the others
    try:
        result = function()
    except Exception as error:  # noqa: BLE001 - whatever it is, the others wait
        failure, told = error, (type(error).__name__, str(error))
    outcomes = mm_dist.all_gather_object((result, told))
    if failure is not None:
        raise failure
    for rank, (_, told) in enumerate(outcomes):
        if told is not None:
            name, text = told
            kind = getattr(errors, name, None)
            raise kind(text) if kind else MMRunnerError(f"Process {rank}: {name}: {text}")
    return [result for result, _ in outcomes]
