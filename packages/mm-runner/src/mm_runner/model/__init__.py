"""Models that a Runner can train, and the wrappers it puts around them."""

from mm_dist import MMDistributedDataParallel, is_model_wrapper

from ._averaging import (
    AveragedWeights,
    ExponentialMovingAverage,
    MomentumAnnealingEMA,
    StochasticWeightAverage,
)
from ._base_model import BaseModel
from ._data_preprocessor import BaseDataPreprocessor
from ._steps import EvalStep, TrainStep, eval_step_of, train_step_of, unwrap_model

__all__ = [
    "AveragedWeights",
    "BaseDataPreprocessor",
    "BaseModel",
    "EvalStep",
    "ExponentialMovingAverage",
    "MMDistributedDataParallel",
    "MomentumAnnealingEMA",
    "StochasticWeightAverage",
    "TrainStep",
    "eval_step_of",
    "is_model_wrapper",
    "train_step_of",
    "unwrap_model",
]
