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
from ._module_settings import (
    MODULE_SETTINGS,
    apply_module_settings,
    check_module_settings,
    describe_module_settings,
    plan_module_settings,
)
from ._steps import (
    EvalStep,
    TrainStep,
    check_wrapped_step,
    eval_step_of,
    train_step_of,
    uncalled_step,
    unwrap_model,
)
from ._supervised import Supervised
from ._tta import BaseTTAModel
from ._zeroed_gradients import ZEROED_GRADIENTS, restore_zeroed_gradients, zeroed_gradients

__all__ = [
    "MODULE_SETTINGS",
    "ZEROED_GRADIENTS",
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
    "apply_module_settings",
    "check_module_settings",
    "check_wrapped_step",
    "comm_hook_states",
    "describe_module_settings",
    "eval_step_of",
    "is_model_wrapper",
    "plan_module_settings",
    "power_sgd_states",
    "read_power_sgd",
    "restore_zeroed_gradients",
    "train_step_of",
    "uncalled_step",
    "unwrap_model",
    "write_power_sgd",
    "zeroed_gradients",
]
