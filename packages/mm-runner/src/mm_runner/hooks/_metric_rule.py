"""Whether a greater or a less value of a metric is better, told from its name."""

from __future__ import annotations

import re

from mm_runner.errors import ConfigError

__all__ = ["rule_of"]

# Words of a name, in lower case; those of the first list win: "mape" is an error, "map" is not.
_LESS = re.compile(r"loss|error|err|mae|mape|mse|rmse|nme|epe|fid|perplexity")
_GREATER = re.compile(
    r"[am]?acc(uracy)?|top\d*k?|[am]?ap\d*|[am]?ar(@.*|\d*)|map\d*|[am]?iou|m?dice|auc|f1|fscore"
    r"|precision|recall|psnr|ssim|bleu|score"
)


def rule_of(metric: str, *, where: str = "CheckpointHook.rule") -> str:
    """Return ``"greater"`` or ``"less"``.

    Args:
        metric: Its name.
        where: The argument that says it, for the message.

    Raises:
        ConfigError: If the name tells neither.

    Example:
        >>> rule_of("coco/bbox_mAP_50"), rule_of("val_loss")
        ('greater', 'less')
    """
    words = re.split(r"[/_\s-]+", metric.lower())
    if any(_LESS.fullmatch(word) for word in words):
        return "less"
    if any(_GREATER.fullmatch(word) for word in words):
        return "greater"
    raise ConfigError(
        f"{where}: whether a greater or a less {metric!r} is better cannot be told "
        "from its name; give rule='greater' or rule='less'."
    )
