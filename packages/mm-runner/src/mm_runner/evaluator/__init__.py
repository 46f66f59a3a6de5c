"""Metrics, and the evaluator that runs several of them."""

from ._accuracy import Accuracy
from ._evaluator import Evaluator

# For those who build and check a run's configuration: no names for users.
from ._evaluator import build_evaluator as build_evaluator
from ._evaluator import evaluator_type as evaluator_type
from ._evaluator import refuse_evaluator as refuse_evaluator

# For mm_runner.model, which divides predictions too: no names for users.
from ._layout import join as join
from ._layout import layout_of as layout_of
from ._layout import split as split
from ._metric import BaseMetric, as_number, score_of
from ._predictions import PREDICTION_SUFFIXES, DumpResults, Predictions, load_predictions

# For the check of a configuration: no name for users.
from ._torchmetrics import is_torch_metric as is_torch_metric

__all__ = [
    "PREDICTION_SUFFIXES",
    "Accuracy",
    "BaseMetric",
    "DumpResults",
    "Evaluator",
    "Predictions",
    "as_number",
    "load_predictions",
    "score_of",
]
