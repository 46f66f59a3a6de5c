"""Where a resumed run continues in its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_runner.data import DataPosition
from mm_runner.loops import IterBasedTrainLoop

from ._other_processes import describe_batches, saved_world_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._runner import Runner

__all__ = ["position_elsewhere", "position_without_state", "settle_position"]

_WAY_OUT = "resume_data=False (--no-resume-data) begins the data anew."


def position_without_state(loop: Any, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the position of a checkpoint that says only how much was done, as MMEngine's."""
    epoch, iteration = int(meta.get("epoch", 0)), int(meta.get("iter", 0))
    position = DataPosition(epoch, samples=0)
    if isinstance(loop, IterBasedTrainLoop):
        length = loop.batches.length
        whole, rest = (0, iteration) if length is None else divmod(iteration, length)
        position = DataPosition(whole, rest)
    return {"epoch": epoch, "iter": iteration, "position": position._asdict(), "pass": {}}


def position_elsewhere(
    runner: Runner, checkpoint: Mapping[str, Any], states: list[Any]
) -> dict[str, Any]:
    """Return the position of another number of processes for this one, and log what that means.

    Args:
        runner: The run.
        checkpoint: What it continues from.
        states: Of all processes that wrote it.
    """
    state, num_saved = states[0], saved_world_size(checkpoint)
    if "position" not in state:
        return dict(state)
    position = DataPosition(**state["position"])
    batches = getattr(runner.train_loop, "batches", None)
    if batches is not None:
        position = batches.rescaled(position, num_saved, runner.world_size)
    runner.logger.warning(
        f"The checkpoint was written by {num_saved} process(es), this run has "
        f"{runner.world_size}: the data continue {_place(position)}, each sample once. "
        f"{describe_batches(runner, checkpoint)}"
    )
    return {**state, "position": position._asdict(), "pass": {}}


def settle_position(runner: Runner, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the position in the data, after ``resume_data``, and log what is not as it was."""
    position = DataPosition(**state["position"])
    if runner.cfg.get("resume_data") is False:
        position, place = _anew(runner, position, state["iter"])
        runner.logger.info(f"resume_data is False: the data continue {place}.")
        return position._asdict()
    batches = getattr(runner.train_loop, "batches", None)
    if batches is not None and position.is_begun and position.num_batches is not None:
        length = position.batch + (batches.num_left(position) or 0)
        if length != position.num_batches:
            runner.logger.warning(
                f"The checkpoint was written in a pass of {position.num_batches} batches, which "
                f"has {length} in this run: the dataset or the batch size has changed. The data "
                f"continue {_place(position)}. {_WAY_OUT}"
            )
    return position._asdict()


def _anew(runner: Runner, position: DataPosition, step: int) -> tuple[DataPosition, str]:
    """Return the beginning of a pass in an order of its own, and name it."""
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
            place += f"; it was under way, after batch {position.batch}, and is trained again"
    return anew._replace(order=step), place


def _place(position: DataPosition) -> str:
    if not position.is_begun:
        return "with the next epoch"
    done = f"batch {position.batch} of each process"
    if position.samples is not None:
        done = f"sample {position.samples}"
    return f"after {done} of pass {position.epoch + 1}"
