"""The seed of a run, and what is seeded by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import mm_dist
from mm_runner.data import batch_seed
from mm_runner.errors import ConfigError

from ._checks import checked_mapping
from ._environment import seed_everything, switch_deterministic

if TYPE_CHECKING:
    import logging

__all__ = ["RunSeed"]


class RunSeed:
    """Chooses the seed, alike on all processes, and seeds the generators of this one.

    Args:
        randomness: ``seed`` (``None`` draws one), ``diff_rank_seed``, ``deterministic``.
        rank: Index of this process.

    Attributes:
        value: The seed.
        deterministic: Whether deterministic algorithms were asked for.
        loader_generator: Of all loaders, and of nothing else.

    Raises:
        ConfigError: If a key is unknown or the seed is none.
    """

    def __init__(self, randomness: Any, rank: int) -> None:
        cfg = checked_mapping(randomness, "randomness", ("seed", "diff_rank_seed", "deterministic"))
        self._configured = cfg.get("seed")
        self._apart = rank if cfg.get("diff_rank_seed", False) else 0
        self.deterministic = bool(cfg.get("deterministic", False))
        # The sampler_seed hook sets it anew each epoch.
        self.loader_generator = torch.Generator()
        self.value = _chosen(self._configured)

    def apply(self, logger: logging.Logger) -> None:
        """Seed every generator of this process, and switch to deterministic algorithms if asked."""
        self._seed_process()
        if self.deterministic:
            switch_deterministic(logger)

    def take_over(self, seed: int | None, logger: logging.Logger) -> None:
        """Use the seed of a checkpoint, ``None`` if it has none, from here on."""
        if seed is None or seed == self.value:
            return
        if self._configured is not None:
            logger.warning(
                f"randomness.seed is {self.value}, the checkpoint's {seed}: the checkpoint's is "
                "used, so that the order of the data goes on."
            )
        self.value = seed
        self._seed_process()

    def start_anew(self, num_steps: int) -> None:
        """Seed every generator by the seed and ``num_steps``: a run goes on without theirs."""
        seed_everything(batch_seed(self.value, self._apart, 0, num_steps) % 2**32)

    def _seed_process(self) -> None:
        seed_everything(self.value + self._apart)
        self.loader_generator.manual_seed(self.value)


def _chosen(seed: Any) -> int:
    if seed is None:
        return mm_dist.sync_random_seed()
    # torch's generators take 64 bits; the epoch and the process are added to it.
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ConfigError(
            f"randomness.seed: an integer from 0 to 2**63 - 1 or None is needed, got {seed!r}."
        )
    return seed
