"""Tells samplers which epoch it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from mm_runner.data import announce_epoch

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["DistSamplerSeedHook"]


class DistSamplerSeedHook(Hook):
    """Tells the sampler the epoch, and seeds the loader by it.

    So every epoch is shuffled anew, alike on all ranks, however often the run was stopped and
    resumed. A loop over iterations tells the sampler itself, as it goes through the data again.
    """

    @override
    def before_train_epoch(self, runner: RunView) -> None:
        # Seeded whether or not this loader uses it: one that the user brought has its own.
        runner.loader_generator.manual_seed(runner.seed + runner.epoch)
        announce_epoch(runner.train_dataloader, runner.epoch)
