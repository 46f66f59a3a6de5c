"""Models that a Runner can train, and the wrappers it puts around them."""

from mm_dist import MMDistributedDataParallel, is_model_wrapper

from ._averaging import (
    AveragedWeights,
    ExponentialMovingAverage,
    MomentumAnnealingEMA,
    StochasticWeightAverage,
)
from ._base_model import BaseModel
from ._comm_hooks import comm_hook_states, power_sgd_states, read_power_sgd, write_power_sgd
from ._data_preprocessor import BaseDataPreprocessor
from ._steps import EvalStep, TrainStep, eval_step_of, train_step_of, unwrap_model
from ._supervised import Supervised
from ._tta import BaseTTAModel

__all__ = [
    "AveragedWeights",
    "BaseDataPreprocessor",
    "BaseModel",
    "BaseTTAModel",
    "EvalStep",
    "ExponentialMovingAverage",
    "MMDistributedDataParallel",
    "MomentumAnnealingEMA",
    "StochasticWeightAverage",
    "Supervised",
    "TrainStep",
    "comm_hook_states",
    "eval_step_of",
    "is_model_wrapper",
    "power_sgd_states",
    "read_power_sgd",
    "train_step_of",
    "unwrap_model",
    "write_power_sgd",
]
