"""Hint for a model that fails on lists: which ``collate_fn`` makes tensors of them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mm_runner.data import pseudo_collate
from mm_runner.errors import ConfigError, MMRunnerError
from mm_runner.model import unwrap_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._runner import Runner

__all__ = ["explaining_lists"]

# What torch's layers, and code that takes a batch for a tensor, say of a list.
_NOT_LIST = re.compile(r"must be .*[tT]ensor.*not list|got \(list|'list' object has no attribute")


@contextmanager
def explaining_lists(runner: Runner) -> Iterator[None]:
    """Turn the error of a model that cannot take lists, within the block, into what to set.

    Samples are not stacked by default, as with MMEngine, whose models take lists; the layers of
    other modules fail with an error that knows nothing of the loader.

    Raises:
        ConfigError: In place of such an error.
    """
    try:
        yield
    except (AttributeError, TypeError) as error:
        loaders = [(phase, _loader_of(runner, phase)) for phase in ("train", "val", "test")]
        phases = [
            phase
            for phase, loader in loaders
            if getattr(loader, "collate_fn", None) is pseudo_collate
        ]
        is_about_list = _NOT_LIST.search(str(error)) and not isinstance(error, MMRunnerError)
        if not (phases and is_about_list):
            raise
        raise ConfigError(
            f"{phases[0]}_dataloader.collate_fn: {type(unwrap_model(runner.model)).__name__} "
            f"failed with {type(error).__name__}: {str(error).strip().splitlines()[0]} The batch "
            "was made by pseudo_collate, the default, which stacks nothing. Set "
            "collate_fn='default_collate' for tensors with a row per sample; or let the model, or "
            "its data_preprocessor, take lists."
        ) from error


def _loader_of(runner: Runner, phase: str) -> Any:
    return getattr(vars(runner).get(f"{phase}_loop"), "dataloader", None)
