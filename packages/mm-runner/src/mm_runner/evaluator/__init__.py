"""Metrics, and the evaluator that runs several of them."""

from ._accuracy import Accuracy
from ._evaluator import Evaluator
from ._metric import BaseMetric

__all__ = ["Accuracy", "BaseMetric", "Evaluator"]
