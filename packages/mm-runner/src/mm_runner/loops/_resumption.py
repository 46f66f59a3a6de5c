"""Going on from a checkpoint as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from mm_runner.checkpoint import set_rng_state
from mm_runner.data import DataPosition

from ._rehearsal import needs_rehearsal, rehearse

if TYPE_CHECKING:
    import torch

    from mm_runner.data import TrainBatches

__all__ = ["Resumption"]


class Resumption:
    """What a resumed run restores while its first pass over the data begins, and in which order.

    The generators go back to the beginning of the pass first: what drew random numbers then, a hook
    or a sampler, draws the same ones. Then the batches before are left out. Then, if there were
    any, the generators become those of the checkpoint, and the next batch is drawn.

    Args:
        state: What the other run's ``state_dict`` of the loop returned on this process. Without
            ``rng`` the generators are left as they are.
        restore: Gives the model and the optimizers their state once more; called after a
            rehearsal of the first step, which changes them.
    """

    def __init__(self, state: Mapping[str, Any], restore: Callable[[], None]) -> None:
        self.state = dict(state)
        self.position = DataPosition(**state["data"])
        self._restore: Callable[[], None] = restore

    def restore_begin(self, batches: TrainBatches, device: torch.device) -> None:
        """Let the generators be as the pass under way began."""
        at_begin = self.state["pass"]
        if not self.position.is_begun:
            at_begin = {**at_begin, "rng": self.state["rng"]}
        if at_begin.get("rng"):
            set_rng_state(at_begin["rng"], device)
        batches.set_generator_states(at_begin.get("generators", {}))

    def go_on(
        self, runner: Any, batches: Iterator[Any], step: Callable[[Any, Any], Any]
    ) -> Iterator[Any]:
        """Return ``batches`` with everything ready for a step on the first of them."""
        # Of a pass that is yet to begin they are there, and what its hooks drew since counts.
        if self.state["rng"] and self.position.is_begun:
            set_rng_state(self.state["rng"], runner.device)
        if self.state["iter"] == 0 or not needs_rehearsal(runner.model, runner.world_size):
            return batches
        for first in batches:
            rehearse(runner, step, first, self._restore)
            return chain([first], batches)
        return batches
