"""Logs what compiling did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["CompileReportHook"]


class CompileReportHook(Hook):
    """Logs the report of ``runner.compile_handle`` once steps are timed, or when training ends.

    The Runner adds it to a run that compiles. Regions that fall back to eager code after the
    report are logged when training ends.
    """

    priority = "VERY_LOW"

    def __init__(self) -> None:
        self._reported: set[str] | None = None

    @override
    def before_train(self, runner: RunView) -> None:
        self._reported = None

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self._reported is None and runner.compile_handle.is_warm:
            self._report(runner)

    @override
    def after_train(self, runner: RunView) -> None:
        if self._reported is None:
            self._report(runner)
            return
        for name, failure in _failures(runner.compile_handle).items():
            if name not in self._reported:
                runner.logger.warning(f"compile: {name} ended up running eagerly: {failure}")

    def _report(self, runner: RunView) -> None:
        runner.logger.info(f"compile: {runner.compile_handle.report()}")
        self._reported = set(_failures(runner.compile_handle))


def _failures(handle: Any) -> dict[str, str]:
    return {one.name or "the model": one.failure for one in handle.regions if one.failure}
