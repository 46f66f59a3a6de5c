"""Whether what a run will save can be saved, known before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mm_runner.checkpoint import plain
from mm_runner.hooks import CheckpointHook
from mm_runner.model import unwrap_model

from ._sharded_state import as_sharded

if TYPE_CHECKING:
    from mm_runner.hooks import Hook
    from mm_runner.runner import Runner

__all__ = ["check_savable"]


def check_savable(runner: Runner) -> None:
    """Check the model's part of a checkpoint; nothing is copied.

    Otherwise the first checkpoint would end the run, and an epoch's work with it.

    Raises:
        CheckpointError: If the model keeps something besides tensors and primitives, such as bytes
            from ``get_extra_state``, and no hook of the user's may turn it into these.
    """
    saves = any(isinstance(hook, CheckpointHook) for hook in runner.hooks)
    if not saves or as_sharded(runner.model) is not None or any(map(_may_convert, runner.hooks)):
        return
    weights = unwrap_model(runner.model).state_dict()
    plain({"state_dict": weights}, to_host=lambda tensor, _: tensor)


def _may_convert(hook: Hook) -> bool:
    kind = type(hook)
    return kind.acts_at("before_save_checkpoint") and not kind.__module__.startswith("mm_runner.")
