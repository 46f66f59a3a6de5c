"""Ending a training between two steps as if it were done."""

__all__ = ["EndOfTrainingError"]


class EndOfTrainingError(Exception):
    """Ends the training loop that a step belongs to, in the middle of an epoch too.

    The loop goes on to ``after_train``. What is under way, the epoch or a validation, is left out,
    with the stages after it: a run that is resumed does it.
    """
