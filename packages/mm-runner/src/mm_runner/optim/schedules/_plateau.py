"""The schedule that follows a metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mm_runner.errors import ConfigError
from mm_runner.evaluator import score_of

from ._group_values import GroupValues

__all__ = ["ReduceOnPlateau"]

_STATE = ("best", "num_bad", "cooldown_left", "reduced_at")


class ReduceOnPlateau:
    """Multiply by ``factor`` once a metric has not become better for more than ``patience`` times.

    Args:
        values: The setting.
        where: Path of the config, for messages.
        monitor: Name of the metric, as the validation reports it. Defaults to ``"loss"``.
        rule: ``"less"`` (the default) or ``"greater"`` is better.
        factor: Less than 1. Defaults to 0.1.
        patience: Validations to wait. Defaults to 10.
        threshold: Least change that counts. Defaults to 1e-4.
        threshold_rule: ``"rel"`` (the default): a fraction of the best; ``"abs"``: a difference.
        cooldown: Validations after a change in which nothing is counted. Defaults to 0.
        min_value: Floor, one number or one for each parameter group. Defaults to 0.
        eps: Changes that are not greater are left out. Defaults to 1e-8.
    """

    def __init__(
        self,
        values: GroupValues,
        where: str,
        /,
        monitor: str = "loss",
        rule: str = "less",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_rule: str = "rel",
        cooldown: int = 0,
        min_value: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if rule not in {"less", "greater"}:
            raise ConfigError(f"rule={rule!r} was given; there are 'less' and 'greater'.")
        if threshold_rule not in {"rel", "abs"}:
            raise ConfigError(f"threshold_rule={threshold_rule!r} was given; 'rel' or 'abs'.")
        if not factor < 1:
            raise ConfigError(f"factor={factor!r} was given; it is less than 1.")
        if threshold < 0:
            raise ConfigError(f"threshold={threshold!r} was given; it is at least 0.")
        if isinstance(min_value, Sequence) and len(min_value) != len(values):
            raise ConfigError(
                f"min_value has {len(min_value)} values, and the optimizer {len(values)} parameter "
                "groups; give one number, or one for each group."
            )
        self._values, self._where = values, where
        self.setting, self.monitor = values.name, monitor
        self._sign = 1.0 if rule == "less" else -1.0
        self._factor, self._patience, self._cooldown = factor, patience, cooldown
        self._threshold, self._is_relative = threshold, threshold_rule == "rel"
        self._min_value, self._eps = min_value, eps
        self.best: float | None = None
        self.num_bad = 0
        self.cooldown_left = 0
        # Epochs after which values were reduced, to replay them.
        self.reduced_at: list[int] = []

    def rewind(self) -> None:
        """Set the initial values; what was seen of the metric stays."""
        self._values.reset()

    def start(self) -> None:
        """Do nothing: only metrics change a value."""

    def advance(self, step: int) -> None:
        """Do nothing: only metrics change a value."""

    def follow(self, metrics: Mapping[str, Any], count: int) -> None:
        """Take in the results of a validation after ``count`` epochs.

        Raises:
            ConfigError: If the metric is not among them, or no number.
        """
        if self._is_due(score_of(metrics, self.monitor, f"{self._where}.monitor")):
            self.reduced_at.append(count)
            self._reduce()

    def repeat(self, count: int) -> None:
        """Reduce the values as after ``count`` epochs."""
        for _ in range(self.reduced_at.count(count)):
            self._reduce()

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen of the metric."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what was seen of the metric."""
        for name in _STATE:
            setattr(self, name, state_dict[name])

    def _reduce(self) -> None:
        for index in range(len(self._values)):
            floor = self._min_value
            least = floor[index] if isinstance(floor, Sequence) else floor
            current, _ = self._values.read(index)
            new = max(current * self._factor, least)
            if current - new > self._eps:
                self._values.write(index, new)

    def _is_due(self, metric: float) -> bool:
        if self._is_better(metric):
            self.best = metric
            self.num_bad = 0
        else:
            self.num_bad += 1
        if self.cooldown_left > 0:
            self.cooldown_left -= 1
            self.num_bad = 0
        if self.num_bad <= self._patience:
            return False
        self.cooldown_left = self._cooldown
        self.num_bad = 0
        return True

    def _is_better(self, metric: float) -> bool:
        if math.isnan(metric):
            return False
        if self.best is None:
            return True
        margin = self._threshold * (abs(self.best) if self._is_relative else 1.0)
        return self._sign * metric < self._sign * self.best - margin
