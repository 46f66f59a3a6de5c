"""Metrics, and the evaluator that runs several of them."""

from ._accuracy import Accuracy
from ._evaluator import Evaluator
from ._metric import BaseMetric
from ._score import is_score, score_of

__all__ = ["Accuracy", "BaseMetric", "Evaluator", "is_score", "score_of"]
