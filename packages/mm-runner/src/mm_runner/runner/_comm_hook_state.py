"""What every process's communication hook has of its own in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mm_dist
from mm_runner.model import comm_hook_states, power_sgd_states, read_power_sgd, write_power_sgd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mm_runner.runner import Runner

__all__ = ["COMM_HOOKS", "gather_comm_hooks", "restore_comm_hooks", "warn_of_comm_hooks"]

# Key of the checkpoint.
COMM_HOOKS = "comm_hooks"

# What PowerSGD leaves out is as large as the gradients, on each process. Beyond this, in bytes over
# all of them, it is not worth its place in every file, and the memory of the main process.
_MOST_BYTES = 2 * 2**30


def gather_comm_hooks(runner: Runner) -> list[dict[str, Any]] | None:
    """Return PowerSGD's state of every process, in rank order; on the main process only.

    Every process must call this.

    Returns:
        Nothing if there is none, or if it is too large; the log says so then.
    """
    states = power_sgd_states(runner.model)
    if not states:
        return None
    own = {name: read_power_sgd(state) for name, state in states.items()}
    left_out = [one for read in own.values() for one in read["error_dict"].values()]
    num_bytes = sum(one.numel() * one.element_size() for one in left_out) * runner.world_size
    # Alike on all processes: they have buckets of the same sizes.
    if num_bytes > _MOST_BYTES:
        runner.logger.warning(
            f"comm_hook: what powerSGD has left out of the gradients so far takes {num_bytes:,} "
            "bytes on all processes together, and is not saved: a run that resumes goes on close "
            "to, but not exactly as, one without a stop."
        )
        return None
    return mm_dist.gather_object(own)


def restore_comm_hooks(runner: Runner, checkpoint: Mapping[str, Any]) -> None:
    """Let this process's PowerSGD go on from its own state, if that was saved."""
    saved = _own_states(runner, checkpoint)
    for name, state in power_sgd_states(runner.model).items():
        if name in saved:
            write_power_sgd(state, saved[name], runner.device)


def warn_of_comm_hooks(runner: Runner, checkpoint: Mapping[str, Any]) -> None:
    """Say that a communication hook has a state which the checkpoint has not."""
    saved = _own_states(runner, checkpoint)
    if comm_hook_states(runner.model).keys() - saved.keys():
        runner.logger.warning(
            "comm_hook: its state is not in the checkpoint, or is that of another number of "
            "processes: the run goes on close to, but not exactly as, one without a stop."
        )


def _own_states(runner: Runner, checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    saved = checkpoint.get(COMM_HOOKS)
    if not isinstance(saved, list) or len(saved) != runner.world_size:
        return {}
    states: Mapping[str, Any] = saved[runner.rank]
    return states
