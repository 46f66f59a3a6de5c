"""Where a resumed run continues in its data, also with another number of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_runner.data import DataPosition
from mm_runner.errors import ConfigError
from mm_runner.loops import IterBasedTrainLoop
from mm_runner.optim import named_wrappers

from ._summary import batch_of_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._runner import Runner

__all__ = [
    "batch_of_run",
    "check_world_size",
    "position_elsewhere",
    "position_without_state",
    "settle_position",
]


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


def check_world_size(runner: Runner, checkpoint: Mapping[str, Any]) -> None:
    """Check that a run may continue from ``checkpoint`` with its number of processes.

    Raises:
        ConfigError: If that is another one, and ``on_world_size_change`` is ``"error"``.
    """
    saved = _saved_world_size(checkpoint)
    is_refused = runner.cfg.get("on_world_size_change") == "error"
    if is_refused and saved not in (0, runner.world_size):
        raise ConfigError(
            f"on_world_size_change: 'error' was given; the checkpoint was written by {saved} "
            f"process(es), and this run has {runner.world_size}. Start {saved}, or set 'keep', "
            "which goes on with the samples that are left."
        )


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
    runner: Runner, checkpoint: Mapping[str, Any], states: list[Any]
) -> dict[str, Any]:
    """Return this process's position from those of another number of processes, and warn."""
    state, num_saved = states[0], _saved_world_size(checkpoint)
    if "position" not in state:
        return dict(state)
    position = DataPosition(**state["position"])
    batches = getattr(runner.train_loop, "batches", None)
    if batches is not None:
        position = batches.rescaled(position, num_saved, runner.world_size)
    runner.logger.warning(
        f"The checkpoint was written by {num_saved} process(es), this run has "
        f"{runner.world_size}: the data continue {_place(position)}, each sample once. "
        f"{_describe_batches(runner, checkpoint)}Schedules and learning rates are left as they are."
    )
    return {**state, "position": position._asdict(), "pass": {}}


def settle_position(runner: Runner, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the position in the data, after ``resume_data``, and log what has changed."""
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
                f"continue {_place(position)}. resume_data=False (--no-resume-data) begins the "
                "data anew."
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


def _saved_world_size(checkpoint: Mapping[str, Any]) -> int:
    """Return how many processes wrote a checkpoint, 0 if it does not say."""
    number = int(checkpoint.get("meta", {}).get("world_size", 0))
    return number or len(checkpoint.get("rng", ()))


def _describe_batches(runner: Runner, checkpoint: Mapping[str, Any]) -> str:
    """Return how many samples a step took before and takes now, and what keeps that number."""
    now = batch_of_run(runner)
    saved = checkpoint.get("meta", {}).get("batch") or now
    size, size_before = now["per_process"], saved.get("per_process") or now["per_process"]
    old, new = _saved_world_size(checkpoint), runner.world_size
    if size is None:
        return f"A step takes {new / old:g} times as many samples as before. "
    texts = []
    for name, count in now["accumulated"].items():
        count_before = saved.get("accumulated", {}).get(name, count)
        before, after = size_before * old * count_before, size * new * count
        texts.append(
            f"{f'Of {name}, a' if name else 'A'} step took {before} samples ({size_before} of a "
            f"process x {old} x {count_before} accumulated), and takes {after} ({size} x {new} x "
            f"{count}). "
        )
        if before != after:
            texts.append(f"batch_size x accumulative_counts = {before / new:g} keeps {before}. ")
    return "".join(texts)
