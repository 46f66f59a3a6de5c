"""Returns cached memory to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["EmptyCacheHook"]


class EmptyCacheHook(Hook):
    """Empties the device's memory cache, in training, validation and test.

    That makes room for other programs, not for this one, and waits for the device.

    Args:
        before_epoch: Whether before each epoch. Defaults to ``False``.
        after_epoch: Whether after each epoch. Defaults to ``True``.
        after_iter: Whether after each iteration. Defaults to ``False``.
    """

    def __init__(
        self,
        before_epoch: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        after_epoch: bool = True,  # noqa: FBT001, FBT002
        after_iter: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.before_epoch = before_epoch
        self.after_epoch = after_epoch
        self.after_iter = after_iter

    @override
    def _before_epoch(self, runner: RunView, mode: str = "train") -> None:
        if self.before_epoch:
            _empty(runner)

    @override
    def _after_epoch(self, runner: RunView, mode: str = "train") -> None:
        if self.after_epoch:
            _empty(runner)

    @override
    def _after_iter(
        self,
        runner: RunView,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = "train",
    ) -> None:
        if self.after_iter:
            _empty(runner)


def _empty(runner: RunView) -> None:
    # torch.cuda, torch.npu, torch.xpu and so on; the CPU has no cache.
    empty = getattr(getattr(torch, runner.device.type, None), "empty_cache", None)
    if empty is not None:
        empty()
