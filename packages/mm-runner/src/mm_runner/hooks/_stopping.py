"""Hooks that end a training: by a metric, a loss or a clock."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

import mm_dist
from mm_amp import NonFiniteError
from mm_runner.errors import ConfigError
from mm_runner.evaluator import score_of
from mm_runner.registry import check_integer

from ._hook import Hook
from ._metrics import is_better, rule_of

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

_CLOCK = re.compile(r"^(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)$")
_MOST_S = 1e9  # longer waits overflow in the system call


class EarlyStoppingHook(Hook):
    """End training after ``patience`` validations in a row without a better metric.

    Metrics are equal on all ranks, so all ranks stop at the same point.

    Args:
        monitor: Name of the metric, as the validation reports it.
        rule: ``"greater"`` or ``"less"`` is better; by default inferred from the name.
        min_delta: Least change that counts as better; with 0 any does. Defaults to 0.1.
        strict: Whether a validation without the metric is an error; else it is a warning,
            unless no metric of the run can report it.
        check_finite: Stop as soon as the metric is infinite or NaN. Defaults to ``True``.
        patience: Validations; 0 is the same as 1. Defaults to 5.
        stopping_threshold: Stop as soon as the metric is better than that.

    Raises:
        ConfigError: If an argument is out of its range.
    """

    priority = "LOWEST"

    def __init__(
        self,
        monitor: str,
        rule: str | None = None,
        min_delta: float = 0.1,
        strict: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        check_finite: bool = True,  # noqa: FBT001, FBT002
        patience: int = 5,
        stopping_threshold: float | None = None,
    ) -> None:
        check_integer("EarlyStoppingHook.patience", patience, least=0)
        if not min_delta >= 0:
            raise ConfigError(
                f"EarlyStoppingHook.min_delta: a number >= 0 is needed, got {min_delta!r}; it is a "
                "distance, whatever the rule."
            )
        self.monitor = monitor
        self.rule = rule_of(monitor, "EarlyStoppingHook.rule", rule)
        self.min_delta, self.strict, self.check_finite = min_delta, strict, check_finite
        self.patience, self.stopping_threshold = max(patience, 1), stopping_threshold
        self._worst = -math.inf if self.rule == "greater" else math.inf
        self.wait_count, self.best_score = 0, self._worst

    @property
    def followed_metrics(self) -> dict[str, str]:
        """The metric that validations must report, and the argument that asks for it."""
        return {self.monitor: "EarlyStoppingHook.monitor"}

    @override
    def before_run(self, runner: RunView) -> None:
        # Of a training before; a resumed one loads its state after this.
        self.wait_count, self.best_score = 0, self._worst

    @override
    def before_train(self, runner: RunView) -> None:
        # A checkpoint written after the validation that ended training ends a resumed run, too.
        if self.wait_count >= self.patience or self._is_enough(self.best_score):
            runner.train_loop.stop_training = True
            runner.logger.info(
                f"EarlyStoppingHook: the checkpoint says that {self.monitor} ended training; to "
                "train on, change patience or stopping_threshold."
            )

    @override
    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        if not runner.is_training:
            return
        metrics = metrics or {}
        try:
            score = score_of(metrics, self.monitor, "EarlyStoppingHook.monitor")
        except ConfigError as error:
            if self.strict or self.monitor in metrics:  # there, and no number
                raise
            runner.logger.warning(f"{error} It was passed over.")
            return
        reason = self._reason_to_stop(score)
        if reason is not None:
            runner.train_loop.stop_training = True
            runner.logger.info(f"EarlyStoppingHook: {reason}; training ends.")

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "wait_count": self.wait_count}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_score = state_dict["best_score"]
        self.wait_count = state_dict["wait_count"]

    def _reason_to_stop(self, score: float) -> str | None:
        """Count a result, and return why to stop, ``None`` to train on."""
        best = f"the best was {self.best_score:g}"
        if self.check_finite and not math.isfinite(score):
            return f"{self.monitor} is {score}; {best}"
        if self._is_enough(score):
            self.best_score = score
            return f"{self.monitor} is {score:g}, {self.rule} than {self.stopping_threshold:g}"
        delta = self.min_delta if self.rule == "greater" else -self.min_delta
        # The same once more is no progress, nor is a NaN, of which neither is better.
        if is_better(score, self.best_score, self.rule) and not is_better(
            self.best_score + delta, score, self.rule
        ):
            self.best_score, self.wait_count = score, 0
            return None
        self.wait_count += 1
        if self.wait_count < self.patience:
            return None
        return (
            f"{self.monitor} did not become {self.rule} by min_delta={self.min_delta:g} in "
            f"{self.wait_count} validations (patience={self.patience}); {best}"
        )

    def _is_enough(self, score: float) -> bool:
        threshold = self.stopping_threshold
        return threshold is not None and is_better(score, threshold, self.rule)


class CheckInvalidLossHook(Hook):
    """Read the losses every ``interval`` steps, and end the run if one is not finite.

    All ranks end together, whichever rank's loss it was. To skip single steps instead, give the
    optimizer wrapper ``max_skips``.

    Args:
        interval: Training steps between two checks, each of which waits for the device. Defaults
            to 50.

    Raises:
        ConfigError: If ``interval`` is not a positive integer.
    """

    def __init__(self, interval: int = 50) -> None:
        check_integer("CheckInvalidLossHook.interval", interval, least=1)
        self.interval = interval

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if not self.every_n_train_iters(runner, self.interval):
            return
        bad = [
            f"{name} is {float(value)}"
            for name, value in (outputs.items() if isinstance(outputs, dict) else ())
            if "loss" in name and isinstance(value, (Tensor, int, float))
            if not math.isfinite(value)
        ]
        num_bad = torch.tensor(float(len(bad)))
        mm_dist.all_reduce(num_bad)
        if num_bad:
            raise NonFiniteError(
                f"CheckInvalidLossHook: after step {runner.iter + 1} a loss is not finite: "
                f"{', '.join(bad) or 'on another rank'}. Lower the learning rate, clip gradients, "
                "or give the optimizer wrapper max_skips."
            )


class TimeLimitHook(Hook):
    """End training after a time: between two steps, with a checkpoint of the last one.

    The main process's clock counts from ``before_run``, and all processes stop after the same step.
    Accumulated gradients are used first; a validation is cut off. A resumed run continues exactly,
    does that validation first, and has the whole time again.

    Args:
        max_time: ``"HH:MM:SS"``, ``"D-HH:MM:SS"``, seconds, or a ``timedelta``. Keep time free for
            a step and for saving.
        then: ``"end"``: training ends as if it were done, with ``after_train`` and ``after_run``,
            but without the last validation; ``"requeue"``: the run leaves as after SIGTERM, by
            :class:`~mm_runner.errors.RunStopped` with status 75. Defaults to ``"end"``.

    Raises:
        ConfigError: If the time cannot be read.

    Example:
        >>> hook = TimeLimitHook("1-11:55:00", then="requeue")
    """

    def __init__(
        self, max_time: str | float | timedelta, then: Literal["end", "requeue"] = "end"
    ) -> None:
        if then not in ("end", "requeue"):
            raise ConfigError(f"TimeLimitHook.then: 'end' or 'requeue' is needed, got {then!r}.")
        self.max_time_s = _seconds(max_time)
        self.then: Literal["end", "requeue"] = then

    @override
    def before_run(self, runner: RunView) -> None:
        if runner.is_training:
            runner.interruption.end_after(self.max_time_s, self.then)
            limit = timedelta(seconds=round(self.max_time_s, 3))
            runner.logger.info(f"TimeLimitHook: training ends in {limit} at the latest.")


def _seconds(value: Any) -> float:
    seconds = math.nan
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (match := _CLOCK.match(value.strip())):
        days, hours, minutes, whole = (float(number or 0) for number in match.groups())
        seconds = 86400 * days + 3600 * hours + 60 * minutes + whole
    if not 0 < seconds <= _MOST_S:
        raise ConfigError(
            "TimeLimitHook.max_time: 'HH:MM:SS', 'D-HH:MM:SS' or a positive number of seconds is "
            f"needed, got {value!r}."
        )
    return seconds
