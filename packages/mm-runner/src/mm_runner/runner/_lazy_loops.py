"""Loops that are built when they are first asked for."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from mm_runner.checkpoint import rng_state, set_rng_state
from mm_runner.errors import ConfigError

from ._overrides import built_by

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EarlyTrainLoop", "LoopWhenAskedFor", "leaving_generators"]


class LoopWhenAskedFor:
    """An attribute of the Runner that builds a loop, and is that loop from then on.

    It has no ``__set__``: what is stored under its name is found before it, so that the steps of a
    training look up a plain attribute.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, run: Any, owner: type | None = None) -> Any:
        if run is None:
            return self
        return run.build_loop(self._name.partition("_")[0])


@contextmanager
def leaving_generators(device: torch.device) -> Iterator[None]:
    """Let random numbers that are drawn in the block not be those of the run."""
    state = rng_state(device)
    try:
        yield
    finally:
        set_rng_state(state, device)


class EarlyTrainLoop:
    """A training loop that was asked for before training, which is to go as it does without.

    Args:
        run: The Runner, whose ``build_train_loop`` builds it.
        cfg: Of the loop.

    Attributes:
        loop: The loop.
    """

    def __init__(self, run: Any, cfg: Any) -> None:
        self._seed = run.seed
        self._before = rng_state(run.device)
        with leaving_generators(run.device):
            self.loop = built_by(run, "build_train_loop", cfg)
            self._behind = rng_state(run.device)

    def begin(self, run: Any) -> Any:
        """Return the loop for the training that begins, as if it were built now.

        The generators go to where building it had left them; where others have drawn random
        numbers meanwhile, they are left as they are.

        Raises:
            ConfigError: If the seed is another one by now.
        """
        self.check_seed(run)
        if _is_same(self._before, rng_state(run.device)):
            set_rng_state(self._behind, run.device)
        return self.loop

    def has_seed_of(self, run: Any) -> bool:
        """Tell whether the seed is still the one that the loop was built with."""
        return bool(run.seed == self._seed)

    def check_seed(self, run: Any) -> None:
        """Check that the data come in the order that they would come in now.

        Raises:
            ConfigError: If the seed is another one by now.
        """
        if not self.has_seed_of(run):
            raise ConfigError(
                f"train_loop was asked for when the seed of the run was {self._seed}, and now it "
                f"is {run.seed}: its data would come in another order. Ask for it after what "
                "changes the seed, such as resume() and set_randomness()."
            )


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    shared = one.keys() & other.keys()  # NumPy's is there once somebody has imported it
    return all(
        torch.equal(one[name], other[name])
        if isinstance(one[name], torch.Tensor)
        else one[name] == other[name]
        for name in shared
    )
