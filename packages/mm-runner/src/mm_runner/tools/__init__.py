"""Tools beside the core: plan, trial runs, finders, export, conversion, crash bundles, curves."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._convert import convert_mmengine_checkpoint as convert_mmengine_checkpoint
    from ._crash import CrashBundleHook as CrashBundleHook
    from ._export import export_model as export_model
    from ._fast_dev_run import fast_dev_run as fast_dev_run
    from ._find_batch_size import find_batch_size as find_batch_size
    from ._find_lr import find_learning_rate as find_learning_rate
    from ._plan import make_plan as make_plan
    from ._plot import plot_rates as plot_rates
    from ._plot import plot_runs as plot_runs
    from ._plot import read_scalars as read_scalars
    from ._predictions import write_predictions as write_predictions
    from ._replay import replay_crash as replay_crash
    from ._verify_resume import verify_resume as verify_resume

_MODULES = {
    "CrashBundleHook": "_crash",
    "convert_mmengine_checkpoint": "_convert",
    "export_model": "_export",
    "fast_dev_run": "_fast_dev_run",
    "find_batch_size": "_find_batch_size",
    "find_learning_rate": "_find_lr",
    "make_plan": "_plan",
    "plot_rates": "_plot",
    "plot_runs": "_plot",
    "read_scalars": "_plot",
    "replay_crash": "_replay",
    "verify_resume": "_verify_resume",
    "write_predictions": "_predictions",
}
__all__ = [*_MODULES]  # noqa: PLE0604 - they are names


def __getattr__(name: str) -> Any:
    """Import a tool on first use: every run has the hook of the crash bundle, and no other."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
