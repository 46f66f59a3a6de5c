"""The hook that counts how often the host waits for the device."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.hooks._hook import Hook

from ._counter import Sync, SyncCounter, leaves_compiled_code_alone

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["HostSyncHook"]


class HostSyncHook(Hook):
    """Counts what makes the host wait for the device in a few training steps, and tells who calls.

    Once they are over, the log has a table: how often per step, which operation (``item()`` and its
    like, copies to the host, ``nonzero``, masks as indices), and which line of code outside of
    torch and of mm-runner's packages, or which hook of the run. Loading of data and validations are
    left out, and so is what a compiled graph does within. The counted steps, of the first process
    alone, take longer than others by some microseconds per operation.

    On the CPU, on which nobody waits, the same operations are counted: they would wait on a device.
    Copies to the host are not seen there, as nothing is copied: ``cpu()``, ``tolist()``,
    ``numpy()``. How torch's own optimizers read their counts of steps is left out. That a tensor is
    printed is seen nowhere: torch hides it.

    A run with ``compile`` stays compiled. Where torch is too old for that, nothing is counted, and
    a warning says so.

    On CUDA ``torch.cuda.set_sync_debug_mode("warn")`` is exact where this goes by a list of
    operations; it names no hooks.

    Args:
        begin: Training steps before the first that is counted. Defaults to 10.
        iters: How many are counted. Defaults to 5.

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
        for name, value, least in (("begin", begin, 0), ("iters", iters, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"HostSyncHook.{name}: an integer >= {least} is needed, in steps, got "
                    f"{value!r}."
                )
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
    def is_idle_at(self, stage: str) -> bool:
        return stage == "before_train_iter" and self._is_done

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        if self._is_done:  # a Runner with a call_hook of its own asks nobody whether it is idle
            return
        self.after_step(runner)  # of one that failed, in a loop that goes on all the same
        self._passed += 1
        if self.begin < self._passed <= self.begin + self.iters:
            self._first = self._first or runner.iter + 1
            self._mode = SyncCounter(self.counts, runner.device.type)
            self._mode.__enter__()

    @override
    def after_train_epoch(self, runner: RunView) -> None:
        self.after_step(runner)

    @override
    def before_val(self, runner: RunView) -> None:
        self.after_step(runner)

    @override
    def after_train(self, runner: RunView) -> None:
        if self._is_done:
            return
        if self.steps:  # training ended before its time
            self._tell(runner)
        else:
            runner.logger.info(
                f"HostSyncHook: nothing was counted: training ended after {self._passed} steps, "
                f"and begin={self.begin} leaves out the first ones."
            )

    @override
    def clean_up(self, runner: RunView) -> None:
        self.leave()

    def leave(self) -> bool:
        """Count no longer, and return whether this did."""
        mode, self._mode = self._mode, None
        if mode is None:
            return False
        mode.__exit__(None, None, None)
        self.steps += 1
        return True

    def after_step(self, runner: RunView) -> None:
        """End counting a step; after the last one tell, and act no more."""
        if self.leave() and self.steps == self.iters:
            self._is_done = True
            self._tell(runner)
            renew = getattr(runner.train_loop, "renew_hooks", None)
            if renew is not None:  # from now on both are idle
                renew()

    def _tell(self, runner: RunView) -> None:
        runner.logger.info("\n".join(self._lines(runner)))

    def _lines(self, runner: RunView) -> list[str]:
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
        if runner.cfg.get("compile"):
            lines.append("  What compiled graphs do within is not seen.")
        if runner.device.type == "cuda" and total:
            lines.append('  torch.cuda.set_sync_debug_mode("warn") warns at each, exactly.')
        return lines


def _can_count(runner: RunView) -> bool:
    """Tell whether counting leaves the run as it is; where it does not, say so."""
    if leaves_compiled_code_alone() or not _compiles(runner):
        return True
    runner.logger.warning(
        f"HostSyncHook counts nothing: torch {torch.__version__} would run uncompiled what this "
        "run compiles. Set compile=False for the steps that are to be counted, or update torch."
    )
    return False


def _compiles(runner: RunView) -> bool:
    """Tell whether this run, or the user before it, compiles something of the model."""
    return runner.compile_handle.enabled or any(
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in runner.model.modules()
    )


class _EndOfStep(Hook):
    """Acts last in a step for a hook that acts first in it."""

    priority = "LOWEST"

    def __init__(self, owner: HostSyncHook) -> None:
        self._owner = owner

    @override
    def is_idle_at(self, stage: str) -> bool:
        return stage == "after_train_iter" and self._owner.is_idle_at("before_train_iter")

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self._owner.after_step(runner)
