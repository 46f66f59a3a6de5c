"""Loops of training, validation and test."""

from ._epoch_train import EpochBasedTrainLoop
from ._evaluation import TestLoop, ValLoop
from ._iter_train import IterBasedTrainLoop
from ._train_loop import AbstractTrainLoop, EndOfTrainingError

__all__ = [
    "AbstractTrainLoop",
    "EndOfTrainingError",
    "EpochBasedTrainLoop",
    "IterBasedTrainLoop",
    "TestLoop",
    "ValLoop",
]
