"""The best validation by each of several metrics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError
from mm_runner.evaluator import as_number, score_of

from ._arguments import name_list
from ._metrics import rule_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BestCheckpoints", "file_of"]


class BestCheckpoints:
    """Keeps the best score of each metric, with its epoch, step and file.

    Args:
        save_best: Metrics; ``"auto"`` stands for the first number that a validation reports.
        rule: ``"greater"`` or ``"less"`` for all, or one for each; ``None``: by the name.
        greater_keys: Words in names of metrics of which the greater value is better.
        less_keys: Likewise, the less.

    Attributes:
        records: ``score``, ``epoch``, ``iter`` and ``file`` by metric.

    Raises:
        ConfigError: If they do not fit each other, or a name does not tell its rule.
    """

    def __init__(self, save_best: Any, rule: Any, greater_keys: Any, less_keys: Any) -> None:
        names = name_list("CheckpointHook.save_best", save_best)
        if len(set(names)) < len(names) or ("auto" in names and len(names) > 1):
            raise ConfigError(
                f"CheckpointHook.save_best: {save_best!r} was given; name each metric once, or "
                "'auto' alone."
            )
        self._keys = {
            "greater": name_list("CheckpointHook.greater_keys", greater_keys),
            "less": name_list("CheckpointHook.less_keys", less_keys),
        }
        rules = name_list("CheckpointHook.rule", rule)
        for one in rules:
            if one not in ("greater", "less"):
                raise ConfigError(
                    f"CheckpointHook.rule: 'greater' or 'less' is needed, got {one!r}."
                )
        if len(rules) > 1 and len(rules) != len(names):
            raise ConfigError(
                f"CheckpointHook.rule: {len(rules)} rules were given for {len(names)} metrics in "
                "save_best; give one for each, or one for all."
            )
        self._is_auto = names == ["auto"]
        self._auto_rule = rules[0] if rules else None
        self.metrics = [] if self._is_auto else names
        if rules:
            self._rules = dict(zip(names, rules * len(names), strict=False))
        else:
            self._rules = {name: self._rule_of(name) for name in self.metrics}
        self.records: dict[str, dict[str, Any]] = {}

    @property
    def wants_any(self) -> bool:
        """Whether a metric was asked for."""
        return self._is_auto or bool(self.metrics)

    def improved(self, reported: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics, and their scores, that are better than ever.

        Raises:
            ConfigError: If a metric was not reported, or is no number.
        """
        if self._is_auto and not self.metrics:
            # A metric may report tables too; where there is nothing else, the first is refused.
            numbers = (name for name, value in reported.items() if as_number(value) is not None)
            self._resolve_auto(next(numbers, next(iter(reported))))
        where = "CheckpointHook.save_best"
        scores = {name: score_of(reported, name, where) for name in self.metrics}
        return {name: score for name, score in scores.items() if self._is_better(name, score)}

    def take_over(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Take in the records of a checkpoint, where they are better."""
        for name, record in records.items():
            if record.get("file") != file_of(name):  # no other file is taken for a model
                continue
            if self._is_auto and not self.metrics:
                self._resolve_auto(name)
            if name in self.metrics and self._is_better(name, record["score"]):
                self.records[name] = dict(record)

    def _is_better(self, name: str, score: float) -> bool:
        before = self.records.get(name, {}).get("score", math.nan)
        if math.isnan(score) or math.isnan(before):
            return not math.isnan(score)
        return bool(score > before if self._rules[name] == "greater" else score < before)

    def _resolve_auto(self, name: str) -> None:
        self.metrics = [name]
        self._rules[name] = self._auto_rule or self._rule_of(name)

    def _rule_of(self, name: str) -> str:
        for rule, keys in self._keys.items():
            if any(key.lower() in name.lower() for key in keys):
                return rule
        return rule_of(name, "CheckpointHook.rule")


def file_of(metric: str) -> str:
    """Return the name of the file of the best model by ``metric``."""
    return f"best_{metric.replace('/', '_')}.pth"
