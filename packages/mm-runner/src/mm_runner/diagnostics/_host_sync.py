"""Host-device synchronizations by line of code."""

from __future__ import annotations

import os
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from mm_runner.hooks import Hook
from mm_runner.registry import check_integer

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

_MESSAGE = "called a synchronizing"
_PACKAGES = ("torch", "mm_runner", "mm_dist", "mm_amp", "mm_compile", "mm_npu")
_LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in _PACKAGES)


class HostSyncHook(Hook):
    """Count how often the host waits for the device in a few training steps, by line of code.

    Afterwards the log names each line outside of torch and of mm-runner's packages that waits, such
    as ``loss.item()`` or an index that is a mask, and the hook that it belongs to. It listens to
    ``torch.cuda.set_sync_debug_mode("warn")``, on the first process; on a device without that mode,
    such as the CPU, nothing is counted, and a warning says so. Validations are left out.

    Args:
        begin: Training steps before the first that is counted. Defaults to 10.
        iters: Steps that are counted. Defaults to 5.

    Attributes:
        counts: Number of waits in the counted steps, by origin.

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
        self.counts: Counter[str] = Counter()
        self._num_steps = 0
        self._set_mode: Any = None
        self._filters: warnings.catch_warnings[Any] | None = None

    @override
    def before_train(self, runner: RunView) -> None:
        self.counts, self._num_steps = Counter(), 0
        module = getattr(torch, runner.device.type, None)
        self._set_mode = getattr(module, "set_sync_debug_mode", None) if runner.rank == 0 else None
        if self._set_mode is None and runner.rank == 0:
            runner.logger.warning(
                f"HostSyncHook counts nothing: torch reports no synchronization on "
                f"{runner.device.type}. It does on cuda."
            )

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        if self._set_mode is None:
            return
        if self._num_steps == self.begin + self.iters:
            self.after_train(runner)
            return
        self._num_steps += 1
        if self._num_steps > self.begin and self._filters is None:
            self._filters = warnings.catch_warnings()
            self._filters.__enter__()
            warnings.filterwarnings("always", _MESSAGE)
            self._show = warnings.showwarning
            warnings.showwarning = self._count
            self._set_mode("warn")

    @override
    def before_val(self, runner: RunView) -> None:
        self.clean_up(runner)

    @override
    def after_train(self, runner: RunView) -> None:
        self.clean_up(runner)
        if self._set_mode is None:
            return
        self._set_mode = None
        steps = max(self._num_steps - self.begin, 0)
        per_step = 1 / max(steps, 1)
        each = f"{sum(self.counts.values()) * per_step:.3g} times each"
        lines = [f"HostSyncHook: in {steps} steps the host waited for the device {each}."]
        for origin, count in self.counts.most_common():
            lines.append(f"  {count * per_step:8.3g}  {origin}")
        runner.logger.info("\n".join(lines))

    @override
    def clean_up(self, runner: RunView) -> None:
        if self._filters is not None:
            self._set_mode("default")
            self._filters.__exit__(None, None, None)
            self._filters = None

    def _count(self, message: Any, *arguments: Any, **named: Any) -> None:
        if str(message).startswith(_MESSAGE):
            self.counts[_origin()] += 1
        else:
            self._show(message, *arguments, **named)


def _origin() -> str:
    """Return the caller's line outside of torch and our packages, after the hook it belongs to."""
    place = ""
    for frame, line in traceback.walk_stack(None):
        code = frame.f_code
        path = Path(code.co_filename)
        is_library = any(one in code.co_filename for one in _LIBRARIES)
        if not place and not is_library and not path.name.endswith("warnings.py"):
            place = f"{path.parent.name}/{path.name}:{line} in {code.co_name}"
        owner = frame.f_locals.get("self") if "self" in code.co_varnames[:1] else None
        if isinstance(owner, Hook) and code.co_filename != __file__:
            return f"{type(owner).__name__}, {place or code.co_name}"
        if f"{os.sep}mm_runner{os.sep}loops{os.sep}" in code.co_filename:  # calls the step
            break
    return place or "the training loop"
