"""Loops of training, validation and test."""

from ._base_loop import BaseLoop
from ._epoch_and_iter import EpochBasedTrainLoop, IterBasedTrainLoop
from ._evaluation import TestLoop, ValLoop
from ._train_loop import AbstractTrainLoop, EndOfTrainingError

__all__ = [
    "AbstractTrainLoop",
    "BaseLoop",
    "EndOfTrainingError",
    "EpochBasedTrainLoop",
    "IterBasedTrainLoop",
    "TestLoop",
    "ValLoop",
]
