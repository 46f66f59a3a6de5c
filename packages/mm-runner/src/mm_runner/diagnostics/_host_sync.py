"""Operations of a step that make the host wait for the device."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from mm_runner._torch_private import dispatch_mode
from mm_runner.hooks import Hook
from mm_runner.hooks._arguments import check_integer

from ._sync_counter import Sync, SyncCounter

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["HostSyncHook"]


class HostSyncHook(Hook):
    """Counts the operations of a few training steps that make the host wait for the device.

    Afterwards the log has a table: how often per step, which operation (``item()`` and its like,
    copies to the host, ``nonzero``, masks as indices), and which line of code outside of torch and
    of mm-runner's packages, or which hook. Data loading, validations and the inside of compiled
    graphs are left out. The counted steps, of the first process alone, take longer than others by
    some microseconds per operation.

    On the CPU, where nothing waits, the same operations are counted: they would wait on a device.
    Copies to the host are not seen there: ``cpu()``, ``tolist()``, ``numpy()``.

    On CUDA ``torch.cuda.set_sync_debug_mode("warn")`` is exact where this goes by a list of
    operations; it names no hooks.

    Args:
        begin: Training steps before the first that is counted. Defaults to 10.
        iters: Steps that are counted. Defaults to 5.

    Attributes:
        counts: How often in all the counted steps, by ``(what, origin)``.
        steps: How many steps were counted.

    Raises:
        ConfigError: If ``begin`` is negative, or ``iters`` not positive.

    Example:
        >>> hook = HostSyncHook(begin=100)  # or dict(type="HostSyncHook", begin=100)
    """

    priority = "HIGHEST"

    def __init__(self, begin: int = 10, iters: int = 5) -> None:
        check_integer("HostSyncHook.begin", begin, least=0)
        check_integer("HostSyncHook.iters", iters, least=1)
        self.begin, self.iters = begin, iters
        self.counts: Counter[Sync] = Counter()
        self.steps = 0
        self._passed = self._first = 0
        self._is_done = True
        self._mode: Any = None
        self._end = _EndOfStep(self)

    @override
    def before_train(self, runner: RunView) -> None:
        self.counts, self.steps = Counter(), 0
        self._passed = self._first = 0
        self._is_done = runner.rank != 0 or not _can_count(runner)
        # The last of the hooks ends what this, the first of them, begins.
        if self._end not in runner.hooks:
            runner.register_hook(self._end)

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        if self._is_done:
            return
        self.end_step(runner)  # of one that failed, in a loop that goes on all the same
        self._passed += 1
        if self.begin < self._passed <= self.begin + self.iters:
            self._first = self._first or runner.iter + 1
            self._mode = SyncCounter(self.counts, runner.device.type)
            self._mode.__enter__()

    @override
    def after_train_epoch(self, runner: RunView) -> None:
        self.end_step(runner)

    @override
    def after_train(self, runner: RunView) -> None:
        if self._is_done:
            return
        if self.steps:  # training ended before its time
            self._log(runner)
        else:
            runner.logger.info(
                f"HostSyncHook: nothing was counted: training ended after {self._passed} steps, "
                f"and begin={self.begin} leaves out the first ones."
            )

    @override
    def on_exception(self, runner: RunView, exception: Exception) -> None:
        self._leave()  # before other hooks describe the failure

    @override
    def clean_up(self, runner: RunView) -> None:
        self._leave()

    def end_step(self, runner: RunView) -> None:
        """Stop counting; log the table after the last step."""
        if self._leave() and self.steps == self.iters:
            self._is_done = True
            self._log(runner)

    def _leave(self) -> bool:
        mode, self._mode = self._mode, None
        if mode is None:
            return False
        mode.__exit__(None, None, None)
        self.steps += 1
        return True

    def _log(self, runner: RunView) -> None:
        last = self._first + self.steps - 1
        steps = f"steps {self._first} to {last}" if self.steps > 1 else f"step {last}"
        total = sum(self.counts.values())
        is_host = runner.device.type == "cpu"
        waits = "would wait for a device" if is_host else "waited for the device"
        lines = [f"HostSyncHook: in {steps} the host {waits} {total / self.steps:.3g} times each."]
        if total:
            width = max(len("operation"), *(len(sync.what) for sync in self.counts))
            lines.append(f"  per step  {'operation':{width}}  by")
            lines += [
                f"  {count / self.steps:8.3g}  {sync.what:{width}}  {sync.origin}"
                for sync, count in self.counts.most_common()
            ]
        runner.logger.info("\n".join(lines))


def _can_count(runner: RunView) -> bool:
    """Return whether counting leaves compiled code compiled; warn where it does not."""
    mode = dispatch_mode()
    if mode is object:
        runner.logger.warning(
            f"HostSyncHook counts nothing: torch {torch.__version__} does not show its operations."
        )
        return False
    names = ("is_infra_mode", "ignore_compile_internals")
    if not runner.compile_handle.enabled or all(hasattr(mode, one) for one in names):
        return True
    runner.logger.warning(
        f"HostSyncHook counts nothing: torch {torch.__version__} would run uncompiled what this "
        "run compiles. Set compile=False for the steps that are to be counted, or update torch."
    )
    return False


class _EndOfStep(Hook):
    """Acts last in a step for a hook that acts first in it."""

    priority = "LOWEST"

    def __init__(self, owner: HostSyncHook) -> None:
        self._owner = owner

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self._owner.end_step(runner)
