"""Tells which hook takes how much of a step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.errors import ConfigError

from ._hook import Hook
from ._hook_calls import HookCalls

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["HookTimesHook"]

_NUM_TOLD = 3


class HookTimesHook(Hook):
    """Times the other hooks in a window of training steps, and tells which of them are dear.

    Time is the host's: what a hook waits for the device counts as the hook's. What happens to lie
    in the window counts, such as a checkpoint; validations do not. What one hook lets another one
    do is the other one's. On the first process only; outside of the window nothing is timed.

    Args:
        begin: Training steps before the window. Defaults to 10.
        iters: Steps in it. Defaults to 50.
        warn_share: Part of a step from which on a hook is named in a warning. Defaults to 0.1.

    Attributes:
        times: Seconds per step of the last window, by class of hook and by stage.
        step_s: Seconds that one of these steps took.

    Raises:
        ConfigError: If an argument is out of its range.

    Example:
        >>> hook = HookTimesHook(iters=200)  # or dict(type="HookTimesHook", iters=200)
    """

    priority = "LOWEST"

    def __init__(self, begin: int = 10, iters: int = 50, warn_share: float = 0.1) -> None:
        for name, value in (("begin", begin), ("iters", iters)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(
                    f"HookTimesHook.{name}: a positive number of steps is needed, got {value!r}."
                )
        if not 0 < warn_share <= 1:
            raise ConfigError(
                f"HookTimesHook.warn_share: above 0, at most 1, is needed, got {warn_share!r}."
            )
        self.begin, self.iters, self.warn_share = begin, iters, warn_share
        self.times: dict[str, dict[str, float]] = {}
        self.step_s = 0.0
        self._passed = self._first = 0
        self._is_done = True
        self._window: _Window | None = None

    @override
    def is_idle_at(self, stage: str) -> bool:
        return stage == "after_train_iter" and self._is_done

    @override
    def before_train(self, runner: RunView) -> None:
        self.times, self.step_s, self._passed = {}, 0.0, 0
        self._is_done = runner.rank != 0

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self._is_done:  # a Runner with a call_hook of its own asks nobody whether it is idle
            return
        self._passed += 1
        if self._passed == self.begin:
            # During the hooks after a step, that one is not counted yet.
            self._first = runner.iter + 2
            self._window = _Window(runner, self)
        elif self._passed == self.begin + self.iters:
            self._finish(runner)

    @override
    def before_val(self, runner: RunView) -> None:
        if self._window is not None:
            self._window.pause()

    @override
    def after_val(self, runner: RunView) -> None:
        if self._window is not None:
            self._window.go_on()

    @override
    def after_train(self, runner: RunView) -> None:
        if self._is_done:
            return
        if self._passed > self.begin:  # it ended before its time
            self._finish(runner)
        else:
            runner.logger.info(
                f"HookTimesHook: nothing was timed: training ended after {self._passed} steps, and "
                f"begin={self.begin} leaves out the first ones."
            )

    @override
    def clean_up(self, runner: RunView) -> None:
        self._close()

    def _close(self) -> _Window | None:
        window, self._window = self._window, None
        if window is not None:
            self._is_done = True
            window.end()
        return window

    def _finish(self, runner: RunView) -> None:
        window = self._close()
        if window is None:
            return
        steps = self._passed - self.begin
        self.step_s = window.elapsed_s / steps
        self.times = {
            name: {stage: seconds / steps for stage, seconds in stages.items()}
            for name, stages in window.times.items()
        }
        self._tell(runner, steps)

    def _tell(self, runner: RunView, steps: int) -> None:
        sums = {name: sum(stages.values()) for name, stages in self.times.items()}
        dearest = sorted(sums, key=lambda name: -sums[name])
        first = self._first
        told = "; ".join(self._cost(name, sums[name]) for name in dearest[:_NUM_TOLD])
        runner.logger.info(
            f"HookTimesHook: of {1e6 * self.step_s:,.0f} us per step hooks took "
            f"{1e6 * sum(sums.values()):,.0f} us, in steps {first} to {first + steps - 1}; most of "
            f"it: {told or 'none'}."
        )
        for name in dearest:
            if sums[name] > self.warn_share * self.step_s:
                runner.logger.warning(
                    f"{name} takes {sums[name] / self.step_s:.0%} of a step: "
                    f"{1e6 * sums[name]:,.0f} us, mostly in {self._dearest_stage(name)}. Let it "
                    "act less often, by an interval; HostSyncHook tells whether it waits for the "
                    "device."
                )

    def _cost(self, name: str, seconds: float) -> str:
        share = seconds / max(self.step_s, 1e-12)
        return f"{name} {1e6 * seconds:,.0f} us ({share:.1%}, {self._dearest_stage(name)})"

    def _dearest_stage(self, name: str) -> str:
        stages = self.times[name]
        return max(stages, key=lambda stage: stages[stage])


class _Window:
    """Steps in which hooks are timed."""

    def __init__(self, runner: RunView, owner: Hook) -> None:
        self.times: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.elapsed_s = 0.0
        self._within_s = 0.0  # of the call under way, what other hooks did
        self._is_paused = False
        self._calls = HookCalls(runner, self._time, besides=owner)
        self._began = time.perf_counter()

    def pause(self) -> None:
        if not self._is_paused:
            self.elapsed_s += time.perf_counter() - self._began
            self._is_paused = True

    def go_on(self) -> None:
        self._began = time.perf_counter()
        self._is_paused = False

    def end(self) -> None:
        self.pause()
        self._calls.end()

    def _time(
        self,
        hook: Hook,
        stage: str,
        act: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> Any:
        if stage == "before_val":  # the owner, whose turn comes last, would be late
            self.pause()
        around_s, self._within_s = self._within_s, 0.0
        began = time.perf_counter()
        try:
            return act(*arguments, **named)
        finally:
            spent = time.perf_counter() - began
            if not self._is_paused and "_val" not in stage:
                self.times[type(hook).__name__][stage] += spent - self._within_s
            self._within_s = around_s + spent
