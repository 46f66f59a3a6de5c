"""The schedule that follows a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mm_runner.errors import ConfigError

__all__ = ["ReduceOnPlateau"]

_STATE = ("best", "num_bad", "cooldown_left")


class ReduceOnPlateau:
    """Multiply by ``factor`` once a metric has not become better for more than ``patience`` times.

    Args:
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
        self.monitor = monitor
        self._sign = 1.0 if rule == "less" else -1.0
        self._factor, self._patience, self._cooldown = factor, patience, cooldown
        self._threshold, self._is_relative = threshold, threshold_rule == "rel"
        self._min_value, self._eps = min_value, eps
        self.best: float | None = None
        self.num_bad = 0
        self.cooldown_left = 0

    def is_due(self, metric: float) -> bool:
        """Take in one more result, and tell whether the values are to be reduced now."""
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

    def reduced(self, index: int, current: float) -> float:
        """Return the new value of the parameter group number ``index``."""
        floor = self._min_value
        least = floor[index] if isinstance(floor, Sequence) else floor
        new = max(current * self._factor, least)
        return new if current - new > self._eps else current

    def check_groups(self, count: int) -> None:
        """Raise unless ``min_value`` fits that many parameter groups.

        Raises:
            ConfigError: If it is a list of another length.
        """
        if isinstance(self._min_value, Sequence) and len(self._min_value) != count:
            raise ConfigError(
                f"min_value has {len(self._min_value)} values, and the optimizer {count} parameter "
                "groups; give one number, or one for each group."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run goes on from."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        for name in _STATE:
            setattr(self, name, state_dict[name])

    def _is_better(self, metric: float) -> bool:
        if math.isnan(metric):
            return False
        if self.best is None:
            return True
        margin = self._threshold * (abs(self.best) if self._is_relative else 1.0)
        return self._sign * metric < self._sign * self.best - margin
