"""The Runner, and the functions on checkpoints that MMEngine has beside it."""

from mm_amp import autocast
from mm_runner.checkpoint import load_checkpoint, save_checkpoint
from mm_runner.hooks import Priority, get_priority
from mm_runner.loops import BaseLoop, EpochBasedTrainLoop, IterBasedTrainLoop, TestLoop, ValLoop
from mm_runner.reporting import LogProcessor

from ._runner import Runner

__all__ = [
    "BaseLoop",
    "EpochBasedTrainLoop",
    "IterBasedTrainLoop",
    "LogProcessor",
    "Priority",
    "Runner",
    "TestLoop",
    "ValLoop",
    "autocast",
    "get_priority",
    "load_checkpoint",
    "save_checkpoint",
]
