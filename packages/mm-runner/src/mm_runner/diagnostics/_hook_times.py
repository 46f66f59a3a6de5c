"""Time that each hook takes of a step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.hooks import Hook
from mm_runner.hooks._hook import check_integer

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["HookTimesHook"]

_NUM_LOGGED = 3


class HookTimesHook(Hook):
    """Time the other hooks in a window of training steps, and log the slowest.

    Time is the host's: what a hook waits for the device counts as the hook's, and so do
    checkpoints; validations do not. On the first process only; outside of the window nothing is
    timed.

    Args:
        begin: Training steps before the window. Defaults to 10.
        iters: Steps in it. Defaults to 50.

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
        self._seconds: dict[tuple[str, str], float] = defaultdict(
            float
        )  # by class of hook, and stage
        self._num_steps = 0
        self._elapsed_s = self._last = 0.0

    @override
    def before_train(self, runner: RunView) -> None:
        self._seconds.clear()
        self._num_steps, self._elapsed_s = 0, 0.0

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self._num_steps += 1
        if self._num_steps > self.begin:
            self._elapsed_s += time.perf_counter() - self._last
        if self._num_steps == self.begin and runner.rank == 0:
            runner.hooks_list.wrap(self._timed)
        elif self._num_steps == self.begin + self.iters:
            self._log(runner)
        self._last = time.perf_counter()

    @override
    def after_val(self, runner: RunView) -> None:
        self._last = time.perf_counter()

    @override
    def after_train(self, runner: RunView) -> None:
        if self._num_steps < self.begin + self.iters:
            self._log(runner)  # training ended within the window

    @override
    def clean_up(self, runner: RunView) -> None:
        runner.hooks_list.wrap(None)

    def _log(self, runner: RunView) -> None:
        self.clean_up(runner)
        steps = self._num_steps - self.begin
        if steps < 1:
            runner.logger.info(
                f"HookTimesHook: training ended before step {self.begin + 1}: nothing was timed."
            )
            return
        slowest = [
            f"{name} {1e6 * seconds / steps:,.0f} us ({seconds / self._elapsed_s:.1%}, {stage})"
            for (name, stage), seconds in sorted(self._seconds.items(), key=itemgetter(1))[::-1]
        ]
        runner.logger.info(
            f"HookTimesHook: of {1e6 * self._elapsed_s / steps:,.0f} us per step hooks took "
            f"{1e6 * sum(self._seconds.values()) / steps:,.0f} us, in {steps} steps; most of it: "
            f"{'; '.join(slowest[:_NUM_LOGGED]) or 'none'}."
        )

    def _timed(self, hook: Hook, stage: str, act: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method of a hook, for ``HookList.wrap``."""
        if hook is self or "_train" not in stage:
            return act

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return act(*arguments, **named)
            finally:
                self._seconds[type(hook).__name__, stage] += time.perf_counter() - began

        return timed
