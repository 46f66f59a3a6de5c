"""The hook that keeps what is known of a training that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from typing_extensions import override

from mm_runner.hooks import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView
    from mm_runner.runner import Runner

__all__ = ["CrashBundleHook"]


class CrashBundleHook(Hook):
    """Write a crash bundle to the log directory when training fails, for ``mm-runner replay``.

    One of the default hooks; ``crash_bundle: false`` in the configuration keeps nothing.
    """

    priority = "LOWEST"

    @override
    def on_exception(self, runner: RunView, exception: Exception) -> None:
        if runner.cfg.get("crash_bundle", True):
            from ._bundle import keep_crash  # noqa: PLC0415 - few trainings fail

            keep_crash(cast("Runner", runner), exception)
