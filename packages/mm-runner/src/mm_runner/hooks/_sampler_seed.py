"""Tells samplers which epoch it is."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from ._hook import Hook

__all__ = ["DistSamplerSeedHook"]


class DistSamplerSeedHook(Hook):
    """Tells the sampler the epoch, and seeds the loader by it.

    So every epoch is shuffled anew, alike on all ranks, and the workers' random numbers depend on
    the seed and the epoch alone, however often the run was stopped and resumed.
    """

    @override
    def before_train_epoch(self, runner: Any) -> None:
        loader = runner.train_dataloader
        # Seeded whether or not this loader uses it: one that the user brought has its own.
        runner.loader_generator.manual_seed(runner.seed + runner.epoch)
        batch_sampler = loader.batch_sampler
        for sampler in (loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None)):
            if sampler is not None and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(runner.epoch)
                return
