"""Loops: how the batches of a phase are gone through."""

from ._epoch_train import EpochBasedTrainLoop
from ._evaluation import TestLoop, ValLoop

__all__ = ["EpochBasedTrainLoop", "TestLoop", "ValLoop"]
