"""The iteration of this process: one assignment per step, read only by reports."""


class Progress:
    """The iteration, and whether the loop numbers it itself."""

    iteration: int | None = None
    is_marked = False


# One training loop per process, as there is one default process group.
progress = Progress()


def mark_iteration(iteration: int) -> None:
    """Say which iteration begins now, so that a hang report can name it.

    For loops of your own. The ``train_step`` of our wrappers counts by itself, from 1, until this
    is called for the first time. It costs one assignment, whether reports are on or off.

    Args:
        iteration: The number of the iteration, counted as you like.

    Example:
        >>> for iteration in range(3):
        ...     mark_iteration(iteration)
    """
    progress.iteration = iteration
    progress.is_marked = True


def advance_iteration() -> None:
    """Count one more iteration, unless the loop numbers them with ``mark_iteration``."""
    if not progress.is_marked:
        progress.iteration = (progress.iteration or 0) + 1


def current_iteration() -> int | None:
    """Return the number of the iteration that this process is in; ``None`` before the first."""
    return None if progress.iteration is None else int(progress.iteration)
