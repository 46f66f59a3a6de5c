"""Metrics that hooks follow: which value is better, and whether validations report them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError
from mm_runner.evaluator import score_of

if TYPE_CHECKING:
    from mm_runner.optim import ParamScheduler

    from ._hook import Hook

# Words of a name, in lower case; those of the first list win: "mape" is an error, "map" is not.
_LESS = re.compile(r"loss|error|err|mae|mape|mse|rmse|nme|epe|fid|perplexity")
_GREATER = re.compile(
    r"[am]?acc(uracy)?|top\d*k?|[am]?ap\d*|[am]?ar(@.*|\d*)|map\d*|[am]?iou|m?dice|auc|f1|fscore"
    r"|precision|recall|psnr|ssim|bleu|score"
)


def rule_of(metric: str, where: str, given: str | None = None) -> str:
    """Return ``"greater"`` or ``"less"``, whichever is better.

    Args:
        metric: Its name.
        where: The argument that could name the rule, for messages.
        given: Its value; ``None`` infers the rule from the name.

    Raises:
        ConfigError: If the value is neither, or the name implies neither.
    """
    if given is not None:
        if given not in ("greater", "less"):
            raise ConfigError(f"{where}: 'greater' or 'less' is needed, got {given!r}.")
        return given
    words = re.split(r"[/_\s-]+", metric.lower())
    if any(_LESS.fullmatch(word) for word in words):
        return "less"
    if any(_GREATER.fullmatch(word) for word in words):
        return "greater"
    raise ConfigError(
        f"{where}: whether a greater or a less {metric!r} is better cannot be inferred "
        "from its name; give rule='greater' or rule='less'."
    )


def is_better(one: float, other: float, rule: str) -> bool:
    """Return whether ``one`` is better than ``other``; NaN never is."""
    return one > other if rule == "greater" else one < other


def refuse_missing_metrics(
    reported: Iterable[str],
    hooks: Iterable[Hook],
    schedulers: Iterable[ParamScheduler],
) -> None:
    """Refuse metrics that hooks and schedulers follow and validations do not report.

    Args:
        reported: Names that a validation reports.
        hooks: Of the run; one that follows metrics names them in ``followed_metrics``, by argument.
        schedulers: Of the run.

    Raises:
        ConfigError: If one is asked for that is not among them.
    """
    values: dict[str, Any] = dict.fromkeys(reported, 0.0)
    for hook in hooks:
        for name, where in getattr(hook, "followed_metrics", {}).items():
            score_of(values, name, where)
    for scheduler in schedulers:
        monitor = getattr(scheduler, "monitor", None)
        if monitor is not None:
            score_of(values, monitor, f"{scheduler.where}.monitor")
