"""What a run asks of validations, and does not get."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from mm_runner.evaluator import Evaluator
from mm_runner.hooks import CheckpointHook
from mm_runner.hooks._metrics_asked import refuse_missing_metrics
from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop
from mm_runner.optim import named_schedulers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mm_runner.runner import Runner

__all__ = ["warn_of_missing_validation"]


def warn_of_missing_validation(runner: Runner) -> None:
    """Warn, once for each, of what waits for a validation in a run without any.

    Args:
        runner: A run that is built and about to train.

    Raises:
        ConfigError: If a metric is asked for that no validation reports.
    """
    evaluator = getattr(runner.val_loop, "evaluator", None)
    reported = evaluator.reported_names() if isinstance(evaluator, Evaluator) else None
    if reported is not None:
        schedulers = named_schedulers(runner.param_schedulers).values()
        refuse_missing_metrics(reported, runner.hooks, chain.from_iterable(schedulers))
    # A loop of the user's own may validate by itself; and trials leave validations out.
    is_ours = type(runner.train_loop) in (EpochBasedTrainLoop, IterBasedTrainLoop)
    if runner.val_loop is not None or not is_ours or not runner.interruption.saves:
        return
    for told in _waiting(runner):
        runner.logger.warning(
            f"{told}: the run has no validation to take a metric from. Give val_dataloader, "
            "val_cfg and val_evaluator, or leave it out."
        )


def _waiting(runner: Runner) -> Iterator[str]:
    for schedules in named_schedulers(runner.param_schedulers).values():
        for schedule in schedules:
            if getattr(schedule, "need_val_args", False):
                where = getattr(schedule, "where", "param_scheduler")
                yield f"{where} follows a metric, and will never change a value"
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook) and hook._best.wants_any:  # noqa: SLF001 - of this package
            yield f"{type(hook).__name__}.save_best was given, and will save nothing"
