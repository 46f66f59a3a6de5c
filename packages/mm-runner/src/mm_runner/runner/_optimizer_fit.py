"""Whether a checkpoint's optimizer is the one that a run has built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mm_runner.errors import CheckpointError
from mm_runner.optim import named_wrappers

if TYPE_CHECKING:
    import logging

__all__ = ["loading_optimizers"]

# What schedules and torch add to the settings of a parameter group.
_ADDED = {"initial_lr", "param_names", "params"}
_WHAT_TO_DO = (
    "Build the optimizer that the checkpoint was saved with, over the same parameters; or take the "
    "weights alone, by load_from without resume."
)


@contextmanager
def loading_optimizers(optim_wrapper: Any, logger: logging.Logger) -> Iterator[None]:
    """Check what the block loads into the optimizers of ``optim_wrapper``.

    torch takes the settings of any other optimizer, and fails with a bare KeyError in the first
    step. A setting that is only missing, as of an older version of the same one, is kept.

    Raises:
        CheckpointError: If the state is that of another optimizer, or of other parameters.
    """
    own = {name: _settings(one) for name, one in named_wrappers(optim_wrapper).items()}
    failure: KeyError | None = None
    try:
        yield
    except KeyError as error:  # of older versions of torch, once the settings are taken
        failure = error
    except ValueError as error:  # torch's, of groups of other sizes
        text = str(error).rstrip(".")
        raise CheckpointError(
            f"The checkpoint's optimizer does not fit: {text}. {_WHAT_TO_DO}"
        ) from error
    for name, wrapper in named_wrappers(optim_wrapper).items():
        for group, before in zip(wrapper.optimizer.param_groups, own[name], strict=True):
            _check(group, before, type(wrapper.optimizer).__name__, logger)
    if failure is not None:
        raise CheckpointError(
            f"The checkpoint's optimizer does not fit: its state has no {failure}. {_WHAT_TO_DO}"
        ) from failure


def _settings(wrapper: Any) -> list[dict[str, Any]]:
    return [dict(group) for group in wrapper.optimizer.param_groups]


def _check(
    group: dict[str, Any], before: Mapping[str, Any], kind: str, logger: logging.Logger
) -> None:
    missing = [key for key in before if key not in group and key not in _ADDED]
    others = [key for key in group if key not in before and key not in _ADDED]
    if missing and others:
        raise CheckpointError(
            f"The checkpoint's optimizer has the settings {', '.join(others)}, and not "
            f"{', '.join(missing)}, which this run's {kind} has. {_WHAT_TO_DO}"
        )
    for key in missing:
        logger.warning(f"The checkpoint's optimizer has no {key}: {before[key]!r} is used.")
        group[key] = before[key]
