"""Tools beside the core: plan, trial runs, finders, conversion, crash bundles, and curves."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._convert import Conversion, convert_mmengine_checkpoint
    from ._crash import CrashBundleHook
    from ._fast_dev_run import fast_dev_run
    from ._find_batch_size import find_batch_size
    from ._find_lr import LearningRateReport, find_learning_rate
    from ._plan import make_plan
    from ._plot import plot_curves, plot_rates, plot_runs, read_scalars
    from ._replay import replay_crash
    from ._verify_resume import ResumeReport, verify_resume

__all__ = [
    "Conversion",
    "CrashBundleHook",
    "LearningRateReport",
    "ResumeReport",
    "convert_mmengine_checkpoint",
    "fast_dev_run",
    "find_batch_size",
    "find_learning_rate",
    "make_plan",
    "plot_curves",
    "plot_rates",
    "plot_runs",
    "read_scalars",
    "replay_crash",
    "verify_resume",
]

_MODULES = {
    "_convert": ("Conversion", "convert_mmengine_checkpoint"),
    "_crash": ("CrashBundleHook",),
    "_fast_dev_run": ("fast_dev_run",),
    "_find_batch_size": ("find_batch_size",),
    "_find_lr": ("LearningRateReport", "find_learning_rate"),
    "_plan": ("make_plan",),
    "_plot": ("plot_curves", "plot_rates", "plot_runs", "read_scalars"),
    "_replay": ("replay_crash",),
    "_verify_resume": ("ResumeReport", "verify_resume"),
}


def __getattr__(name: str) -> Any:
    """Import a tool on first use: every run has the hook of the crash bundle, and no other."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
