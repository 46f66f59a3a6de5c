"""Which validation was the best, by each of several metrics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError
from mm_runner.evaluator import as_number, score_of

from ._checkpoint_arguments import name_list
from ._metric_rule import rule_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["BestCheckpoints", "file_of"]

_RULES = ("greater", "less")


class BestCheckpoints:
    """Keeps the best score of each metric, and the epoch and file that it belongs to.

    Args:
        save_best: Metrics; ``"auto"`` stands for the first number that a validation reports.
        rule: ``"greater"`` or ``"less"`` for all, or one for each; ``None`` tells it from the name.
        greater_keys: Words of names of metrics of which the greater value is better, besides the
            usual ones.
        less_keys: Likewise, the less.

    Raises:
        ConfigError: If they do not fit each other, or a rule cannot be told.
    """

    def __init__(self, save_best: Any, rule: Any, greater_keys: Any, less_keys: Any) -> None:
        self._metrics = name_list(save_best, "save_best")
        if len(set(self._metrics)) < len(self._metrics) or (
            "auto" in self._metrics and len(self._metrics) > 1
        ):
            raise ConfigError(
                f"CheckpointHook.save_best: {save_best!r} was given; name each metric once, or "
                "'auto' alone."
            )
        self._keys = {
            "greater": name_list(greater_keys, "greater_keys"),
            "less": name_list(less_keys, "less_keys"),
        }
        self._rules = self._rules_by_metric(name_list(rule, "rule"))
        # By metric: score, epoch, iter and file.
        self.records: dict[str, dict[str, Any]] = {}

    @property
    def wants_any(self) -> bool:
        """Whether a metric was asked for."""
        return bool(self._metrics)

    @property
    def metrics(self) -> list[str]:
        """The metrics that were asked for by name."""
        return [name for name in self._metrics if name != "auto"]

    @property
    def saved_files(self) -> list[str]:
        """The names of the files that were saved."""
        return [record["file"] for record in self.records.values()]

    def improved(self, reported: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics, and their scores, that are better than ever.

        Raises:
            ConfigError: If a metric was not reported, or is no number.
        """
        if self._metrics == ["auto"]:
            # A metric may report tables too; where there is nothing else, the first is refused.
            numbers = (name for name, value in reported.items() if as_number(value) is not None)
            self._resolve_auto(next(numbers, next(iter(reported))))
        scores = {
            name: score_of(reported, name, "CheckpointHook.save_best") for name in self._metrics
        }
        return {name: score for name, score in scores.items() if self._is_better(name, score)}

    def take_over(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Take in what another record knows, where it is better."""
        for name, record in records.items():
            if record.get("file") != file_of(name):  # no other file is taken for a model
                continue
            if self._metrics == ["auto"]:
                self._resolve_auto(name)
            if name in self._metrics and self._is_better(name, record["score"]):
                self.records[name] = dict(record)

    def put(self, name: str, record: dict[str, Any]) -> Callable[[], None]:
        """Note what is saved as the best now; return what takes that back."""
        before = dict(self.records)
        self.records[name] = record

        def take_back() -> None:
            self.records.pop(name, None)
            if name in before:
                self.records[name] = before[name]

        return take_back

    def _is_better(self, name: str, score: float) -> bool:
        before = self.records.get(name, {}).get("score", math.nan)
        if math.isnan(score) or math.isnan(before):
            return not math.isnan(score)
        return bool(score > before if self._rules[name] == "greater" else score < before)

    def _resolve_auto(self, name: str) -> None:
        self._metrics = [name]
        self._rules[name] = self._rules.pop("auto", None) or self._told_rule(name)

    def _rules_by_metric(self, rules: list[str]) -> dict[str, Any]:
        for one in rules:
            if one not in _RULES:
                raise ConfigError(
                    f"CheckpointHook.rule: 'greater' or 'less' is needed, got {one!r}."
                )
        if len(rules) > 1 and len(rules) != len(self._metrics):
            raise ConfigError(
                f"CheckpointHook.rule: {len(rules)} rules were given for {len(self._metrics)} "
                "metrics in save_best; give one for each, or one for all."
            )
        if rules:
            return dict(zip(self._metrics, rules * len(self._metrics), strict=False))
        # Now, and not at the end of the first epoch.
        return {name: self._told_rule(name) for name in self.metrics}

    def _told_rule(self, name: str) -> str:
        lowered = name.lower()
        for rule, keys in self._keys.items():
            if any(key.lower() in lowered for key in keys):
                return rule
        return rule_of(name)


def file_of(metric: str) -> str:
    """Return the name of the file of the best model by ``metric``."""
    return f"best_{metric.replace('/', '_')}.pth"
