"""Shuffling by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from mm_runner.data import announce_epoch

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["DistSamplerSeedHook"]


class DistSamplerSeedHook(Hook):
    """Sets the sampler's epoch, and seeds the loader by it.

    Every epoch is shuffled differently, alike on all ranks, also in a resumed run. A loop over
    iterations sets the sampler's epoch itself.
    """

    @override
    def before_train_epoch(self, runner: RunView) -> None:
        runner.loader_generator.manual_seed(runner.seed + runner.epoch)
        announce_epoch(runner.train_dataloader, runner.epoch)
