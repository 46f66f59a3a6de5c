"""Models that a Runner can train, and the wrappers it puts around them."""

from typing import TYPE_CHECKING

from mm_dist import MMDistributedDataParallel, is_model_wrapper
from mm_runner._lazy import importing

from ._base_model import BaseDataPreprocessor, BaseModel
from ._checkpointing import apply_activation_checkpointing, find_checkpointed
from ._steps import eval_step_of, train_step_of, uncalled_step, unwrap_model
from ._supervised import Supervised

if TYPE_CHECKING:
    from ._averaging import (
        AveragedWeights,
        ExponentialMovingAverage,
        MomentumAnnealingEMA,
        StochasticWeightAverage,
    )
    from ._tta import BaseTTAModel

__all__ = [
    "AveragedWeights",
    "BaseDataPreprocessor",
    "BaseModel",
    "BaseTTAModel",
    "ExponentialMovingAverage",
    "MMDistributedDataParallel",
    "MomentumAnnealingEMA",
    "StochasticWeightAverage",
    "Supervised",
    "apply_activation_checkpointing",
    "eval_step_of",
    "find_checkpointed",
    "is_model_wrapper",
    "train_step_of",
    "uncalled_step",
    "unwrap_model",
]

if not TYPE_CHECKING:  # which would take any name then
    __getattr__, __dir__ = importing(__name__, "_averaging", "_tta")
