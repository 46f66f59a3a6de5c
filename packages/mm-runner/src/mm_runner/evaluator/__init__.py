"""Metrics, and the evaluator that runs several of them."""

from ._evaluator import Evaluator

# For other rooms of this package: no names for users.
from ._evaluator import build_evaluator as build_evaluator
from ._evaluator import evaluator_type as evaluator_type
from ._evaluator import is_torch_metric as is_torch_metric
from ._metric import Accuracy, BaseMetric, as_number, score_of
from ._predictions import PREDICTION_SUFFIXES, DumpResults, load_predictions
from ._predictions import CollectPredictions as CollectPredictions
from ._predictions import join as join
from ._predictions import layout_of as layout_of
from ._predictions import on_host as on_host
from ._predictions import save_predictions as save_predictions
from ._predictions import split as split

__all__ = [
    "PREDICTION_SUFFIXES",
    "Accuracy",
    "BaseMetric",
    "DumpResults",
    "Evaluator",
    "as_number",
    "load_predictions",
    "score_of",
]
