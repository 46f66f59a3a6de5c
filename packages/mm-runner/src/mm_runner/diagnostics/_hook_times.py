"""Time that each hook takes of a step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.hooks import Hook
from mm_runner.hooks._arguments import check_integer

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["HookTimesHook"]

_NUM_LOGGED = 3
# Part of a step from which on a hook is worth a warning.
_WARN_SHARE = 0.1


class HookTimesHook(Hook):
    """Times the other hooks in a window of training steps, and names the slowest.

    Time is the host's: what a hook waits for the device counts as the hook's, and so do
    checkpoints; validations do not. The line is a warning if one takes a tenth of a step or more.
    On the first process only; outside of the window nothing is timed.

    Args:
        begin: Training steps before the window. Defaults to 10.
        iters: Steps in it. Defaults to 50.

    Attributes:
        times: Seconds per step of the last window, by class of hook and by stage.
        step_s: Seconds per step of the last window.

    Raises:
        ConfigError: If an argument is not a positive integer.

    Example:
        >>> hook = HookTimesHook(iters=200)  # or dict(type="HookTimesHook", iters=200)
    """

    priority = "LOWEST"

    def __init__(self, begin: int = 10, iters: int = 50) -> None:
        check_integer("HookTimesHook.begin", begin, least=1)
        check_integer("HookTimesHook.iters", iters, least=1)
        self.begin, self.iters = begin, iters
        self.times: dict[str, dict[str, float]] = {}
        self.step_s = 0.0
        self._steps = 0
        self._is_timing = False
        self._sums: dict[str, dict[str, float]] = {}
        self._elapsed_s = self._last = 0.0

    @override
    def before_train(self, runner: RunView) -> None:
        self.times, self.step_s, self._steps, self._elapsed_s = {}, 0.0, 0, 0.0
        self._sums = defaultdict(lambda: defaultdict(float))

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        now = time.perf_counter()
        self._steps += 1
        if self._is_timing:
            self._elapsed_s += now - self._last
        if self._steps == self.begin and runner.rank == 0:
            self._is_timing = True
            runner.hooks_list.wrap(self._timed)
        elif self._steps == self.begin + self.iters:
            self._finish(runner)
        self._last = time.perf_counter()

    @override
    def after_val(self, runner: RunView) -> None:
        self._last = time.perf_counter()

    @override
    def after_train(self, runner: RunView) -> None:
        if self._steps < self.begin + self.iters:
            self._finish(runner)  # training ended within the window

    @override
    def clean_up(self, runner: RunView) -> None:
        self._is_timing = False
        runner.hooks_list.unwrap(self._timed)

    def _finish(self, runner: RunView) -> None:
        self.clean_up(runner)
        steps = self._steps - self.begin
        if runner.rank != 0:
            return
        if steps < 1:
            runner.logger.info(
                f"HookTimesHook: nothing was timed: training ended after {self._steps} steps, and "
                f"begin={self.begin} leaves out the first ones."
            )
            return
        self.step_s = self._elapsed_s / steps
        self.times = {
            name: {stage: seconds / steps for stage, seconds in stages.items()}
            for name, stages in self._sums.items()
        }
        sums = {name: sum(stages.values()) for name, stages in self.times.items()}
        parts = []
        for name in sorted(sums, key=lambda name: -sums[name])[:_NUM_LOGGED]:
            stage = max(self.times[name], key=lambda stage: self.times[name][stage])
            share = sums[name] / self.step_s
            parts.append(f"{name} {1e6 * sums[name]:,.0f} us ({share:.1%}, {stage})")
        text = (
            f"HookTimesHook: of {1e6 * self.step_s:,.0f} us per step hooks took "
            f"{1e6 * sum(sums.values()):,.0f} us, in {steps} steps; most of it: "
            f"{'; '.join(parts) or 'none'}."
        )
        if max(sums.values(), default=0.0) > _WARN_SHARE * self.step_s:
            runner.logger.warning(
                f"{text} Let the slowest act less often, by an interval; HostSyncHook shows "
                "whether it waits for the device."
            )
        else:
            runner.logger.info(text)

    def _timed(self, hook: Hook, stage: str, act: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method of a hook, for ``HookList.wrap``."""
        if hook is self or "_train" not in stage:
            return act

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return act(*arguments, **named)
            finally:
                self._sums[type(hook).__name__][stage] += time.perf_counter() - began

        return timed
