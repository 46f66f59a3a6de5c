"""Load and save checkpoints outside of a run, under MMEngine's names."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError

from ._content import describe_misfits, load_weights, plain, renamed
from ._shards import load_checkpoint_file
from ._writing import save_checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn


def load_checkpoint(
    model: nn.Module,
    filename: str | Path,
    map_location: Any = None,  # noqa: ARG001 - MMEngine's signature
    strict: bool = False,  # noqa: FBT001, FBT002
    logger: Any = None,
    revise_keys: Sequence[tuple[str, str]] = ((r"^module\.", ""),),
) -> dict[str, Any]:
    """Load the weights of a checkpoint into a model, and return the checkpoint, on the CPU.

    Args:
        model: The model, also wrapped by DDP; of a sharded one use the Runner.
        filename: The file; no code in it is run.
        map_location: No effect; weights go where the model is.
        strict: Whether an entry that does not fit is an error; else a warning lists them.
        logger: Logs that warning. Defaults to the logger ``"mm_runner"``.
        revise_keys: Pairs of a regular expression and its replacement in the names.

    Raises:
        CheckpointError: If it cannot be read, or nothing in it fits.
        ConfigError: If ``filename`` is a URL.
    """
    refuse_url(filename, "filename")
    checkpoint = revised(load_checkpoint_file(filename), revise_keys)
    problems = load_weights(model, checkpoint.get("state_dict", checkpoint), strict=strict)
    if problems:
        log = logger if isinstance(logger, logging.Logger) else logging.getLogger("mm_runner")
        log.warning(describe_misfits(problems, str(filename), len(model.state_dict())))
    return checkpoint


def save_checkpoint(checkpoint: Mapping[str, Any], filename: str | Path) -> None:
    """Write tensors and primitives so that the file is at any moment absent, the old or the new.

    Args:
        checkpoint: What is saved, such as ``{"state_dict": model.state_dict()}``.
        filename: The file; its folder is created.

    Raises:
        CheckpointError: If there is something besides tensors and primitives.
        CheckpointWriteError: If the file cannot be written.
        ConfigError: If ``filename`` is a URL.
    """
    refuse_url(filename, "filename")
    save_checkpoint_file(plain(checkpoint), Path(filename))


def revised(checkpoint: dict[str, Any], keys: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return a checkpoint, or a ``state_dict`` alone, with other names of weights.

    ``keys`` are pairs of a regular expression and its replacement.
    """

    def rename(name: str) -> str:
        for pattern, replacement in keys:
            name = re.sub(pattern, replacement, name)
        return name

    weights = checkpoint.get("state_dict", checkpoint)
    named: dict[str, Any] = renamed(weights, rename)
    return named if weights is checkpoint else {**checkpoint, "state_dict": named}


def refuse_url(path: Any, where: str) -> None:
    """Raise a ConfigError if ``path`` is a URL."""
    if "://" in str(path):
        raise ConfigError(
            f"{where}: {path!r} was given; checkpoints are read from the file system. "
            "Download it with torch.hub.download_url_to_file(url, path), let 'mm-runner "
            "convert' read it if MMEngine wrote it, and give the path."
        )
