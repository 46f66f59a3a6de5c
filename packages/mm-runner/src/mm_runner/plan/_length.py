"""How long a run would be, and how large its batches."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from mm_runner.data import DataSettings, build_dataloader, num_batches

__all__ = ["Length", "length_of_run"]


class Length(NamedTuple):
    """Of a run.

    ``epoch_steps`` is how many steps go through the data once, ``None`` where these have no length.
    Unless the run counts epochs (``by_epoch``), all of it is one.
    """

    num_epochs: int
    epoch_steps: int | None
    num_steps: int
    per_process: int | None
    by_epoch: bool


def length_of_run(cfg: Any, world_size: int) -> Length:
    """Return the length of the run; the dataset is built, nothing is read from it.

    Args:
        cfg: The full configuration.
        world_size: Processes that share the data.

    Raises:
        ConfigError: If the dataloader's config does not fit, or epochs are counted and the data
            have no length.
    """
    settings = DataSettings(0, torch.Generator(), 0, world_size)
    loader = build_dataloader(
        cfg["train_dataloader"], settings, shuffle=True, where="train_dataloader"
    )
    batch_size = getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size
    train_cfg = cfg["train_cfg"]
    if train_cfg.get("max_iters") is not None and train_cfg.get("max_epochs") is None:
        steps = _steps(loader, world_size) if _has_length(loader) else None
        return Length(1, steps, int(train_cfg["max_iters"]), batch_size, by_epoch=False)
    num_batches(loader, "train_dataloader")
    steps = _steps(loader, world_size)
    num_epochs = int(train_cfg["max_epochs"])
    return Length(num_epochs, steps, num_epochs * steps, batch_size, by_epoch=True)


def _steps(loader: DataLoader[Any], world_size: int) -> int:
    """Return the steps of an epoch, when so many processes share what this one has by itself."""
    if loader.batch_size is None or world_size == 1:
        return math.ceil(len(loader) / world_size)
    share = math.ceil(len(loader.sampler) / world_size)  # type: ignore[arg-type]
    return share // loader.batch_size if loader.drop_last else math.ceil(share / loader.batch_size)


def _has_length(loader: DataLoader[Any]) -> bool:
    try:
        return len(loader) > 0
    except TypeError:
        return False
