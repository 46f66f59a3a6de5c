"""The seed of a run, and what is seeded by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import mm_dist
from mm_runner.data import batch_seed
from mm_runner.validation import check_randomness

from ._environment import fix_cublas_workspace, seed_everything, switch_deterministic

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

__all__ = ["RunSeed"]


class RunSeed:
    """Chooses the seed, alike on all processes, and seeds the generators of this one.

    Args:
        randomness: ``seed`` (``None`` draws one), ``diff_rank_seed``, ``deterministic``.
        rank: Index of this process.

    Attributes:
        configured: What was asked for, as arguments of :meth:`choose`.
        value: The seed, once it is chosen.
        deterministic: Whether deterministic algorithms were asked for.
        is_by_rank: Whether the generators of each process begin otherwise.
        loader_generator: Of all loaders, and of nothing else.
    """

    def __init__(self, randomness: Mapping[str, Any] | None, rank: int) -> None:
        self.configured: dict[str, Any] = {"seed": None, **(randomness or {})}
        self.value: int
        self.deterministic = self.is_by_rank = False
        self._rank = rank
        # The sampler_seed hook sets it anew each epoch.
        self.loader_generator = torch.Generator()

    def choose(
        self,
        logger: logging.Logger,
        seed: int | None,
        diff_rank_seed: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        deterministic: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Seed every generator of this process, and switch to deterministic algorithms if asked.

        Args:
            logger: Told what is overridden.
            seed: ``None`` draws one, alike on all processes.
            diff_rank_seed: Let the generators of each process begin otherwise.
            deterministic: Allow deterministic algorithms only.

        Raises:
            ConfigError: If ``seed`` is no seed.
        """
        check_randomness({"seed": seed}, "randomness")
        fix_cublas_workspace({"deterministic": deterministic})
        self.configured["seed"] = seed
        self.value = mm_dist.sync_random_seed() if seed is None else seed
        self.is_by_rank, self.deterministic = bool(diff_rank_seed), bool(deterministic)
        self._seed_process()
        if self.deterministic:
            switch_deterministic(logger)

    def take_over(self, seed: int | None, logger: logging.Logger) -> None:
        """Use the seed of a checkpoint, ``None`` if it has none, from here on."""
        if seed is None or seed == self.value:
            return
        if self.configured["seed"] is not None:
            logger.warning(
                f"randomness.seed is {self.value}, the checkpoint's {seed}: the checkpoint's is "
                "used, so that the order of the data goes on."
            )
        self.value = seed
        self._seed_process()

    def start_anew(self, num_steps: int) -> None:
        """Seed every generator by the seed and ``num_steps``: a run goes on without theirs."""
        seed_everything(batch_seed(self.value, self._apart, 0, num_steps) % 2**32)

    @property
    def _apart(self) -> int:
        return self._rank if self.is_by_rank else 0

    def _seed_process(self) -> None:
        seed_everything(self.value + self._apart)
        self.loader_generator.manual_seed(self.value)
