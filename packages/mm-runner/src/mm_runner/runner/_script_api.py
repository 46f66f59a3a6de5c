"""What scripts written for MMEngine's Runner call besides ``train``, ``val`` and ``test``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

import mm_dist
from mm_runner.data import DataSettings, build_dataloader
from mm_runner.errors import ConfigError
from mm_runner.evaluator import Evaluator, build_evaluator

from ._facts import RunFacts
from ._loading import read_checkpoint
from ._restoring import restore_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from torch.utils.data import DataLoader

__all__ = ["ScriptApi"]


class ScriptApi(RunFacts):
    """Single parts of a run, for scripts and notebooks."""

    def load_checkpoint(
        self,
        filename: str | os.PathLike[str],
        map_location: Any = "cpu",  # noqa: ARG002 - MMEngine's signature
        strict: bool = False,  # noqa: FBT001, FBT002
        revise_keys: Sequence[tuple[str, str]] = ((r"^module\.", ""),),
    ) -> dict[str, Any]:
        """Give the model the weights of a checkpoint now. Every process must call this.

        Args:
            filename: The file.
            map_location: Accepted for MMEngine's signature; weights go where the model is.
            strict: Whether an entry that does not fit is an error; else the log tells.
            revise_keys: Pairs of a regular expression and what takes its place in the names.

        Returns:
            The checkpoint.

        Raises:
            CheckpointError: On all processes, if the file cannot be read, or nothing in it fits.
            ConfigError: If ``revise_keys`` holds something that is no such pair.
        """
        checkpoint = read_checkpoint(filename)
        weights = checkpoint.get("state_dict", checkpoint)
        revised = {_revised(name, revise_keys): value for name, value in weights.items()}
        checkpoint = {**checkpoint, "state_dict": revised} if weights is not checkpoint else revised
        run: Any = self
        was_resuming, run.is_resuming = run.is_resuming, False  # hooks keep what they have
        try:
            run.call_hook("after_load_checkpoint", checkpoint=checkpoint)
            restore_weights(run, checkpoint, strict=strict)
        finally:
            run.is_resuming = was_resuming
        self.logger.info(f"Loaded {filename}.")
        return checkpoint

    @staticmethod
    def build_dataloader(
        dataloader: DataLoader[Any] | Mapping[str, Any],
        seed: int | None = None,
        diff_rank_seed: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
    ) -> DataLoader[Any]:
        """Build a dataloader from its config, as a run of these processes would.

        Args:
            dataloader: A ``DataLoader`` or its config; without a sampler, samples come in order.
            seed: Of samplers and workers; ``None`` draws one and shares it among the processes.
            diff_rank_seed: Let the workers of each process draw by a seed of its own, as they do
                anyway.

        Raises:
            ConfigError: If a key is missing, unknown or of the wrong type.
        """
        del diff_rank_seed
        seed = mm_dist.sync_random_seed() if seed is None else seed
        generator = torch.Generator().manual_seed(seed)
        settings = DataSettings(seed, generator, *mm_dist.get_dist_info())
        return build_dataloader(dataloader, settings, shuffle=False, where="dataloader")

    @staticmethod
    def build_evaluator(evaluator: Any) -> Evaluator:
        """Build an evaluator.

        Args:
            evaluator: As ``val_evaluator``: a metric, the config of one, a list of these, or
                ``dict(metrics=...)``; an evaluator is returned as it is.

        Raises:
            ComponentNotFoundError: If a ``type`` names nothing.
            ConfigError: If it is nothing of these, or arguments do not fit.
        """
        return build_evaluator(evaluator)


def _revised(name: str, revise_keys: Sequence[tuple[str, str]]) -> str:
    for pair in revise_keys:
        try:
            pattern, replacement = pair
            name = re.sub(pattern, replacement, name)
        except (TypeError, ValueError, re.error) as error:
            raise ConfigError(
                f"revise_keys: {pair!r} was given ({error}); a pair of a regular expression and "
                "what takes its place is needed."
            ) from error
    return name
