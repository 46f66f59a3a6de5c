"""Where a resumed run goes on in its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_runner.data import DataPosition
from mm_runner.loops import IterBasedTrainLoop

from ._other_processes import describe_batches, saved_world_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mm_runner.runner import Runner

__all__ = ["position_of_run", "steps_done"]

_WAY_OUT = "resume_data=False (--no-resume-data) begins the data anew."


def position_of_run(
    runner: Runner,
    checkpoint: Mapping[str, Any],
    position: DataPosition,
    *,
    has_numbers: bool,
    is_kept: bool,
) -> DataPosition:
    """Return where the data go on, and say in the log what is not as it was.

    Args:
        runner: The run, whose loop knows its counters already.
        checkpoint: What it goes on from.
        position: What the checkpoint says.
        has_numbers: Whether the checkpoint has random numbers of this very process.
        is_kept: Whether the data go on from there, and do not begin anew.
    """
    place = ""
    if not is_kept:
        position, place = _anew(runner, position, steps_done(checkpoint))
    if has_numbers:
        if is_kept:
            _tell_of_other_data(runner, position)
        else:
            runner.logger.info(f"resume_data is False: the data go on {place}.")
        return position
    return _without_numbers(runner, checkpoint, position, place)


def _anew(runner: Runner, position: DataPosition, step: int) -> tuple[DataPosition, str]:
    """Return the beginning of a pass in an order of its own, and say which it is."""
    if isinstance(runner.train_loop, IterBasedTrainLoop):
        anew = DataPosition(position.epoch + position.is_begun, samples=0)
        place = "with a pass of their own order"
    elif position.is_complete:  # all but the end of the epoch is done
        anew = position._replace(state=None)
        place = "with the next epoch, in an order of their own"
    else:
        anew = DataPosition(position.epoch, samples=0)
        place = f"with the beginning of epoch {position.epoch + 1}, in an order of their own"
        if position.is_begun:
            place += f"; it was under way, after batch {position.batch}, and is trained anew"
    return anew._replace(order=step), place


def steps_done(checkpoint: Mapping[str, Any]) -> int:
    """Return how many steps the checkpoint's run had taken."""
    counts = checkpoint.get("data", {}) if "iter" in checkpoint.get("data", {}) else None
    return int((counts or checkpoint.get("meta", {})).get("iter", 0))


def _tell_of_other_data(runner: Runner, position: DataPosition) -> None:
    """Warn if a pass is longer or shorter than the one that is under way was."""
    batches = getattr(runner.train_loop, "batches", None)
    if batches is None or not position.is_begun or position.num_batches is None:
        return
    length = position.batch + (batches.num_left(position) or 0)
    if length != position.num_batches:
        runner.logger.warning(
            f"The checkpoint was written in a pass of {position.num_batches} batches, which would "
            f"have {length} in this run: the dataset or the batch size is another one. The data go "
            f"on {_place(position)}. {_WAY_OUT}"
        )


def _without_numbers(
    runner: Runner, checkpoint: Mapping[str, Any], position: DataPosition, place: str
) -> DataPosition:
    """Take up the position of another number of processes, and say what that means."""
    num_saved = saved_world_size(checkpoint)
    said = f"The checkpoint was written by {num_saved or 'an unknown number of'} process(es)"
    if num_saved in (0, runner.world_size):
        anew = f" The data go on {place}." if place else ""
        runner.logger.warning(
            f"{said}, without random numbers: they start anew from the seed.{anew}"
        )
        return position
    batches = getattr(runner.train_loop, "batches", None)
    if batches is not None:
        position = batches.rescaled(position, num_saved, runner.world_size)
    runner.logger.warning(
        f"{said}, this run has {runner.world_size}: the data go on {place or _place(position)}, "
        f"{'' if place else 'each sample once; '}random numbers start anew from the seed. "
        f"{describe_batches(runner, checkpoint)}"
    )
    return position


def _place(position: DataPosition) -> str:
    if not position.is_begun:
        return "with the next epoch"
    done = f"batch {position.batch} of each process"
    if position.samples is not None:
        done = f"sample {position.samples}"
    return f"after {done} of pass {position.epoch + 1}"
