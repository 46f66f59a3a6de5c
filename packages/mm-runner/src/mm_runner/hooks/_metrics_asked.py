"""The metrics that hooks and schedules of a run ask validations for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mm_runner.evaluator import score_of

from ._checkpoint import CheckpointHook
from ._early_stopping import EarlyStoppingHook

if TYPE_CHECKING:
    from mm_runner.optim import ParamScheduler

    from ._hook import Hook

__all__ = ["refuse_missing_metrics"]


def refuse_missing_metrics(
    reported: Iterable[str],
    hooks: Iterable[Hook],
    schedulers: Iterable[ParamScheduler],
    *,
    is_all: bool = True,
) -> None:
    """Refuse metrics that validations do not report.

    Args:
        reported: Names that a validation reports.
        hooks: Of the run.
        schedulers: Of the run.
        is_all: Whether no validation reports another one. Else ``EarlyStoppingHook`` without
            ``strict`` may wait for it.

    Raises:
        ConfigError: If one is asked for that is not among them.
    """
    values = dict.fromkeys(reported, 0.0)
    for name, where in _asked(hooks, schedulers, is_all=is_all):
        score_of(values, name, where)


def _asked(
    hooks: Iterable[Hook], schedulers: Iterable[Any], *, is_all: bool
) -> Iterator[tuple[str, str]]:
    for hook in hooks:
        if isinstance(hook, CheckpointHook):
            for name in hook._best.metrics:  # noqa: SLF001 - of this package
                yield name, "CheckpointHook.save_best"
        elif isinstance(hook, EarlyStoppingHook) and (is_all or hook.strict):
            yield hook.monitor, "EarlyStoppingHook.monitor"
    for scheduler in schedulers:
        monitor = getattr(scheduler, "monitor", None)
        if monitor is not None:
            yield monitor, f"{scheduler.where}.monitor"
