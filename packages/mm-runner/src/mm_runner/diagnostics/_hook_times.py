"""Time spent in each hook."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.hooks import Hook
from mm_runner.registry import check_integer

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

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
        self._seconds: dict[str, float] = defaultdict(float)  # by class of hook, and stage
        self._num_steps = 0

    @override
    def before_train(self, runner: RunView) -> None:
        self._seconds.clear()
        self._num_steps = 0

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self._num_steps += 1
        if self._num_steps == self.begin and runner.rank == 0:
            runner.hooks_list.wrap(self._timed)
        elif self._num_steps == self.begin + self.iters:
            self._log(runner)

    @override
    def after_train(self, runner: RunView) -> None:
        if self._num_steps < self.begin + self.iters:
            self._log(runner)  # training ended within the window

    @override
    def clean_up(self, runner: RunView) -> None:
        runner.hooks_list.wrap(None)

    def _log(self, runner: RunView) -> None:
        self.clean_up(runner)
        steps = max(self._num_steps - self.begin, 0)
        per_step = {name: 1e6 * seconds / max(steps, 1) for name, seconds in self._seconds.items()}
        slowest = sorted(per_step, key=per_step.__getitem__, reverse=True)[:_NUM_LOGGED]
        most = "; ".join(f"{name} {per_step[name]:,.0f} us" for name in slowest)
        runner.logger.info(
            f"HookTimesHook: in {steps} steps hooks took {sum(per_step.values()):,.0f} us each; "
            f"most of it: {most or 'none'}."
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
                self._seconds[f"{type(hook).__name__}.{stage}"] += time.perf_counter() - began

        return timed
