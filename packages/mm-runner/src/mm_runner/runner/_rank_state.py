"""What every process has of its own in a checkpoint: random numbers, data, log windows, buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import mm_dist
from mm_runner.checkpoint import plain, rng_state
from mm_runner.data import DataPosition
from mm_runner.errors import CheckpointError
from mm_runner.model import unwrap_model

from ._fingerprint import fingerprint

if TYPE_CHECKING:
    from torch import Tensor

    from mm_runner.runner import Runner

__all__ = ["gather_rank_buffers", "gather_rank_states", "loop_state", "restore_rank_buffers"]

# Beyond this, in bytes over all ranks, buffers that differ are not worth their place in every file.
_MOST_BUFFERS = 256 * 2**20


def loop_state(runner: Runner) -> dict[str, Any]:
    """Return where training is, as the loop knows it; a user's own may know only its counters."""
    loop = runner.built_loop("train")
    if hasattr(loop, "state_dict"):
        return dict(loop.state_dict())
    position = DataPosition(runner.epoch, samples=0)
    rng = rng_state(runner.device)
    return {
        "epoch": runner.epoch,
        "iter": runner.iter,
        "data": position._asdict(),
        "rng": rng,
        "pass": {},
    }


def gather_rank_states(runner: Runner) -> list[dict[str, Any]]:
    """Return every process's own state, in rank order. Every process must call this.

    Raises:
        CheckpointError: On all processes, if that of one cannot be saved.
    """
    own: Any
    failure: Exception | None = None
    try:
        state = {"loop": loop_state(runner), "scalars": runner.message_hub.state_dict()}
        own = plain(state)
    except Exception as error:  # noqa: BLE001 - a dataset's own state_dict, say; the others wait
        failure = error
        kind = "" if isinstance(error, CheckpointError) else f"{type(error).__name__}: "
        own = f"The state of process {runner.rank} cannot be saved: {kind}{error}"
    states = mm_dist.all_gather_object(own)
    for state in states:
        if isinstance(state, str):
            raise CheckpointError(state) from failure
    return states


def gather_rank_buffers(runner: Runner) -> list[dict[str, Tensor]]:
    """Return every process's values of the buffers that are not alike on all, in rank order.

    Such as the statistics of a batch norm that ranks do not share. Every process must call this.

    Returns:
        Nothing if there are none, or if they are too large; the log says so then.
    """
    if runner.world_size == 1:
        return []
    own = {
        name: buffer.detach().cpu()
        for name, buffer in unwrap_model(runner.model).named_buffers()
        if not hasattr(buffer, "full_tensor")
    }
    digests = mm_dist.all_gather_object({name: fingerprint(value) for name, value in own.items()})
    differing = [name for name in own if any(one.get(name) != digests[0][name] for one in digests)]
    num_bytes = sum(own[name].numel() * own[name].element_size() for name in differing)
    if num_bytes * runner.world_size > _MOST_BUFFERS:
        runner.logger.warning(
            f"The buffers {', '.join(differing[:5])} differ between processes, and are too large "
            "to save them all: a resumed run takes the first process's. Share them with the "
            "SyncBuffersHook, or model_wrapper_cfg=dict(broadcast_buffers=True)."
        )
        differing = []
    if not any(mm_dist.all_gather_object(bool(differing))):
        return []
    return mm_dist.all_gather_object({name: own[name] for name in differing})


def restore_rank_buffers(runner: Runner, saved: list[dict[str, Tensor]]) -> None:
    """Give this process its own buffers back, if the run has as many processes as the one saved."""
    if len(saved) != runner.world_size:
        return
    own = dict(unwrap_model(runner.model).named_buffers())
    with torch.no_grad():
        for name, value in saved[runner.rank].items():
            if name in own and own[name].shape == value.shape:
                own[name].copy_(value)
