"""Loops of training, validation and test."""

from ._epoch_and_iter import EpochBasedTrainLoop, IterBasedTrainLoop
from ._evaluation import TestLoop, ValLoop
from ._train_loop import AbstractTrainLoop, EndOfTrainingError

__all__ = [
    "AbstractTrainLoop",
    "EndOfTrainingError",
    "EpochBasedTrainLoop",
    "IterBasedTrainLoop",
    "TestLoop",
    "ValLoop",
]
