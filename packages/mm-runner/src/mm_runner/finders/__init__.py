"""Short trainings that find a learning rate or a batch size, and leave nothing behind."""

from ._batch_size import BatchSizeReport, BatchTrial, find_batch_size
from ._learning_rate import LearningRateReport, RatePoint, find_learning_rate

__all__ = [
    "BatchSizeReport",
    "BatchTrial",
    "LearningRateReport",
    "RatePoint",
    "find_batch_size",
    "find_learning_rate",
]
