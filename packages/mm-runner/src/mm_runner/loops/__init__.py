"""Loops: how the batches of a phase are gone through."""

from ._ending import EndOfTrainingError
from ._epoch_train import EpochBasedTrainLoop
from ._evaluation import TestLoop, ValLoop
from ._iter_train import IterBasedTrainLoop
from ._rehearsal import needs_rehearsal
from ._train_loop import AbstractTrainLoop

__all__ = [
    "AbstractTrainLoop",
    "EndOfTrainingError",
    "EpochBasedTrainLoop",
    "IterBasedTrainLoop",
    "TestLoop",
    "ValLoop",
    "needs_rehearsal",
]
