"""Where a resumed run continues in its data, also with another number of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_runner.data import DataPosition
from mm_runner.loops import IterBasedTrainLoop
from mm_runner.optim import named_wrappers

from ._summary import batch_of_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._runner import Runner

__all__ = ["batch_of_run", "position_elsewhere", "position_without_state", "warn_of_other_length"]


def batch_of_run(runner: Runner) -> dict[str, Any]:
    """Return the batch of a step: ``per_process`` samples, and batches ``accumulated`` by name."""
    loader = getattr(vars(runner).get("train_loop"), "dataloader", None)
    wrappers = named_wrappers(runner.optim_wrapper) if runner.optim_wrapper is not None else {}
    return {
        "per_process": batch_of_process(loader),
        "accumulated": {
            name: int(getattr(one, "accumulative_counts", 1)) for name, one in wrappers.items()
        },
    }


def position_without_state(loop: Any, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the position of a checkpoint that only counts epochs and steps, as MMEngine's."""
    epoch, iteration = int(meta.get("epoch", 0)), int(meta.get("iter", 0))
    position = DataPosition(epoch, samples=0)
    if isinstance(loop, IterBasedTrainLoop):
        length = loop.batches.length
        whole, rest = (0, iteration) if length is None else divmod(iteration, length)
        position = DataPosition(whole, rest)
    return {"epoch": epoch, "iter": iteration, "position": position._asdict(), "pass": {}}


def position_elsewhere(
    runner: Runner, meta: Mapping[str, Any], states: list[Any]
) -> dict[str, Any]:
    """Return this process's position from those of another number of processes, and warn."""
    state, saved, own = states[0], int(meta.get("world_size", len(states))), runner.world_size
    if "position" not in state:
        return dict(state)
    position = DataPosition(**state["position"])
    batches = getattr(runner.train_loop, "batches", None)
    if batches is not None:
        position = batches.rescaled(position, saved, own)
    sizes = []
    now = batch_of_run(runner)
    before = meta.get("batch") or now
    for name, count in now["accumulated"].items():
        old_size, new_size = before.get("per_process") or now["per_process"], now["per_process"]
        old_count = before.get("accumulated", {}).get(name, count)
        if new_size is not None:
            sizes.append(
                f"{f'Of {name}, a' if name else 'A'} step took {old_size * saved * old_count} "
                f"samples ({old_size} of a process x {saved} x {old_count} accumulated), and takes "
                f"{new_size * own * count} ({new_size} x {own} x {count}). "
            )
    runner.logger.warning(
        f"The checkpoint was written by {saved} process(es), this run has {own}: the data continue "
        f"{_place(position)}, each sample once. {''.join(sizes)}Schedules and learning rates are "
        "left as they are."
    )
    return {**state, "position": position._asdict(), "pass": {}}


def warn_of_other_length(runner: Runner, position: DataPosition) -> None:
    """Warn if a pass over the data has another length than the one that was saved within it."""
    batches = getattr(runner.train_loop, "batches", None)
    if batches is None or not position.is_begun or position.num_batches is None:
        return
    length = position.batch + (batches.num_left(position) or 0)
    if length != position.num_batches:
        runner.logger.warning(
            f"The checkpoint was written in a pass of {position.num_batches} batches, which has "
            f"{length} in this run: the dataset or the batch size has changed. The data continue "
            f"{_place(position)}."
        )


def _place(position: DataPosition) -> str:
    if not position.is_begun:
        return "with the next epoch"
    done = f"batch {position.batch} of each process"
    if position.samples is not None:
        done = f"sample {position.samples}"
    return f"after {done} of pass {position.epoch + 1}"
