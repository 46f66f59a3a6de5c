"""Tools beside the core: plan, trial runs, finders, conversion, crash bundles, and curves."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._convert import convert_mmengine_checkpoint
    from ._crash import CrashBundleHook
    from ._fast_dev_run import fast_dev_run
    from ._find_batch_size import find_batch_size
    from ._find_lr import find_learning_rate
    from ._plan import make_plan
    from ._plot import plot_rates, plot_runs, read_scalars
    from ._replay import replay_crash
    from ._verify_resume import verify_resume

__all__ = [
    "CrashBundleHook",
    "convert_mmengine_checkpoint",
    "fast_dev_run",
    "find_batch_size",
    "find_learning_rate",
    "make_plan",
    "plot_rates",
    "plot_runs",
    "read_scalars",
    "replay_crash",
    "verify_resume",
]

_MODULES = {
    "CrashBundleHook": "_crash",
    "convert_mmengine_checkpoint": "_convert",
    "fast_dev_run": "_fast_dev_run",
    "find_batch_size": "_find_batch_size",
    "find_learning_rate": "_find_lr",
    "make_plan": "_plan",
    "plot_rates": "_plot",
    "plot_runs": "_plot",
    "read_scalars": "_plot",
    "replay_crash": "_replay",
    "verify_resume": "_verify_resume",
}


def __getattr__(name: str) -> Any:
    """Import a tool on first use: every run has the hook of the crash bundle, and no other."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
