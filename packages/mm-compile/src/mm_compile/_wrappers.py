"""Data-parallel wrappers and activation checkpointing around a region."""

import sys
from types import FrameType

import torch

from . import _torch_private as torch_private
from ._errors import TorchVersionError
from ._torch import torch_version


def refuse_checkpointing() -> None:
    """Refuse to compile inside a checkpointed forward, where this torch cannot.

    Before torch 2.6, non-reentrant checkpointing also counts what dynamo computes while it traces,
    and fails in backward.

    Raises:
        TorchVersionError: If torch is older than 2.6 and such a forward runs.
    """
    checkpointing = sys.modules.get("torch.utils.checkpoint")
    if torch_version() >= (2, 6) or checkpointing is None or not torch.is_grad_enabled():
        return
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - torch has no flag for it
    while frame is not None and frame.f_code.co_filename != checkpointing.__file__:
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name not in ("forward", "backward"):
        raise TorchVersionError(
            f"checkpointing around what is compiled needs PyTorch >= 2.6; this is PyTorch "
            f"{torch.__version__}. Checkpoint inside of it, or set use_reentrant=True"
        )


class BucketSplits:
    """Makes dynamo end graphs where the gradient buckets of the running DDP wrapper end.

    Otherwise all gradients of a whole model would be ready at once, at the end of backward, and
    nothing would overlap with their exchange. Dynamo ends a whole model's first graph at the small
    first bucket; with ``bucket_cap_mb`` below its size it would raise. Regions need no small first
    graph. This runs in every call of a region, so it is no context manager.

    Args:
        is_whole: Whether the whole model is one region.
    """

    def __init__(self, *, is_whole: bool) -> None:
        self._is_whole = is_whole

    def begin(self) -> int | None:
        """Change dynamo's setting; return what :meth:`end` restores."""
        wrapper = torch_private.active_ddp()
        if wrapper is None:
            return None
        first = torch_private.first_bucket_bytes()
        if first is not None:
            size = int(wrapper.bucket_bytes_cap)
            torch_private.set_first_bucket_bytes(min(first, size) if self._is_whole else size)
        return first

    def end(self, first: int | None) -> None:
        """Restore the setting."""
        if first is not None:
            torch_private.set_first_bucket_bytes(first)
