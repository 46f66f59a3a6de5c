"""Time that each hook takes of a step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.hooks._arguments import check_integer

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["HookTimesHook", "renew_hooks"]

_NUM_LOGGED = 3


class HookTimesHook(Hook):
    """Times the other hooks in a window of training steps, and names the slowest.

    Time is the host's: what a hook waits for the device counts as the hook's. What happens to lie
    in the window counts, such as a checkpoint; validations do not. If one hook calls another, the
    time is the other one's. On the first process only; outside of the window nothing is timed.

    Args:
        begin: Training steps before the window. Defaults to 10.
        iters: Steps in it. Defaults to 50.
        warn_share: Part of a step from which on a hook is named in a warning. Defaults to 0.1.

    Attributes:
        times: Seconds per step of the last window, by class of hook and by stage.
        step_s: Seconds per step of the last window.

    Raises:
        ConfigError: If an argument is out of its range.

    Example:
        >>> hook = HookTimesHook(iters=200)  # or dict(type="HookTimesHook", iters=200)
    """

    priority = "LOWEST"

    def __init__(self, begin: int = 10, iters: int = 50, warn_share: float = 0.1) -> None:
        check_integer("HookTimesHook.begin", begin, least=1)
        check_integer("HookTimesHook.iters", iters, least=1)
        if not 0 < warn_share <= 1:
            raise ConfigError(
                f"HookTimesHook.warn_share: above 0, at most 1, is needed, got {warn_share!r}."
            )
        self.begin, self.iters, self.warn_share = begin, iters, warn_share
        self.times: dict[str, dict[str, float]] = {}
        self.step_s = 0.0
        self._steps = self._first = 0
        self._is_timing = self._is_validating = False
        self._sums: dict[str, dict[str, float]] = {}
        self._inner_s = 0.0  # of the call under way, the time of hooks that it called
        self._elapsed_s = self._resumed = 0.0

    @override
    def before_train(self, runner: RunView) -> None:
        self.times, self.step_s, self._steps = {}, 0.0, 0
        self._is_validating = False
        self._sums = defaultdict(lambda: defaultdict(float))

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if runner.rank != 0:
            return
        self._steps += 1
        if self._steps == self.begin:
            self._first = runner.iter + 2  # runner.iter does not count this step yet
            runner.hooks_list.wrap(self._timed)
            renew_hooks(runner)
            self._elapsed_s = self._inner_s = 0.0
            self._is_timing, self._resumed = True, time.perf_counter()
        elif self._steps == self.begin + self.iters:
            self._finish(runner)

    @override
    def before_val(self, runner: RunView) -> None:
        self._elapsed_s += time.perf_counter() - self._resumed
        self._is_validating = True

    @override
    def after_val(self, runner: RunView) -> None:
        self._resumed = time.perf_counter()
        self._is_validating = False

    @override
    def after_train(self, runner: RunView) -> None:
        if self._is_timing and self._steps > self.begin:
            self._finish(runner)  # training ended within the window
        elif runner.rank == 0 and not self.times:
            runner.logger.info(
                f"HookTimesHook: nothing was timed: training ended after {self._steps} steps, and "
                f"begin={self.begin} leaves out the first ones."
            )

    @override
    def clean_up(self, runner: RunView) -> None:
        self._is_timing = False
        runner.hooks_list.unwrap(self._timed)

    def _finish(self, runner: RunView) -> None:
        self._elapsed_s += time.perf_counter() - self._resumed
        self.clean_up(runner)
        renew_hooks(runner)
        steps = self._steps - self.begin
        self.step_s = self._elapsed_s / steps
        self.times = {
            name: {stage: seconds / steps for stage, seconds in stages.items()}
            for name, stages in self._sums.items()
        }
        self._log(runner, steps)

    def _log(self, runner: RunView, steps: int) -> None:
        sums = {name: sum(stages.values()) for name, stages in self.times.items()}
        slowest = sorted(sums, key=lambda name: -sums[name])
        parts = [
            f"{name} {1e6 * sums[name]:,.0f} us ({sums[name] / self.step_s:.1%}, "
            f"{self._slowest_stage(name)})"
            for name in slowest[:_NUM_LOGGED]
        ]
        runner.logger.info(
            f"HookTimesHook: of {1e6 * self.step_s:,.0f} us per step hooks took "
            f"{1e6 * sum(sums.values()):,.0f} us, in steps {self._first} to "
            f"{self._first + steps - 1}; most of it: {'; '.join(parts) or 'none'}."
        )
        for name in slowest:
            if sums[name] > self.warn_share * self.step_s:
                runner.logger.warning(
                    f"{name} takes {sums[name] / self.step_s:.0%} of a step: "
                    f"{1e6 * sums[name]:,.0f} us, mostly in {self._slowest_stage(name)}. Let it "
                    "act less often, by an interval; HostSyncHook shows whether it waits for the "
                    "device."
                )

    def _slowest_stage(self, name: str) -> str:
        stages = self.times[name]
        return max(stages, key=lambda stage: stages[stage])

    def _timed(self, hook: Hook, stage: str, act: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method of a hook, for ``HookList.wrap``."""
        if hook is self or "_val" in stage:
            return act

        def timed(*arguments: Any, **named: Any) -> Any:
            outer_s, self._inner_s = self._inner_s, 0.0
            began = time.perf_counter()
            try:
                return act(*arguments, **named)
            finally:
                spent = time.perf_counter() - began
                if not self._is_validating:
                    self._sums[type(hook).__name__][stage] += spent - self._inner_s
                self._inner_s = outer_s + spent

        return timed


def renew_hooks(runner: RunView) -> None:
    """Let the loop look up again the methods that it calls in each step."""
    renew = getattr(runner.train_loop, "renew_hooks", None)
    if renew is not None:
        renew()
