"""Ends training once a metric has stopped improving."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.evaluator import score_of

from ._hook import Hook, check_integer
from ._metrics import is_better, rule_of

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["EarlyStoppingHook"]


class EarlyStoppingHook(Hook):
    """Ends training after ``patience`` validations in a row without a better metric.

    Metrics are equal on all ranks, so all ranks stop at the same point. What was seen so far goes
    into checkpoints.

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
        self.wait_count, self.best_score = 0, self._worst()

    @property
    def followed_metrics(self) -> dict[str, str]:
        """The metric that validations must report, and the argument that asks for it."""
        return {self.monitor: "EarlyStoppingHook.monitor"}

    @override
    def before_run(self, runner: RunView) -> None:
        # Of a training before; a resumed one loads its state after this.
        self.wait_count, self.best_score = 0, self._worst()

    @override
    def before_train(self, runner: RunView) -> None:
        # A checkpoint written after the validation that ended training ends a resumed run, too.
        if self.wait_count >= self.patience or self._is_enough(self.best_score):
            runner.train_loop.stop_training = True
            runner.logger.info(
                f"EarlyStoppingHook: the checkpoint says that {self.monitor} ended "
                "training; to train on, change patience or stopping_threshold."
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

    def _worst(self) -> float:
        return -math.inf if self.rule == "greater" else math.inf

    def _is_enough(self, score: float) -> bool:
        threshold = self.stopping_threshold
        return threshold is not None and is_better(score, threshold, self.rule)
