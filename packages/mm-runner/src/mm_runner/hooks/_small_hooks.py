"""Hooks of a few lines each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

import mm_dist
from mm_runner.registry import MODELS, build_from_cfg, check_cfg

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

# Stands for the model, which is not built yet; fits every annotation.
_MODEL: Any = object()


class CompileReportHook(Hook):
    """Log the report of ``runner.compile_handle`` once steps are timed, or when training ends.

    The Runner adds it to a run that compiles.
    """

    priority = "VERY_LOW"

    _has_reported = False

    @override
    def before_train(self, runner: RunView) -> None:
        self._has_reported = False

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        handle = runner.compile_handle
        if not self._has_reported and handle and handle.is_warm:
            self.after_train(runner)

    @override
    def after_train(self, runner: RunView) -> None:
        if not self._has_reported and runner.compile_handle:
            self._has_reported = True
            runner.logger.info(f"compile: {runner.compile_handle.report()}")


class EmptyCacheHook(Hook):
    """Empty the device's memory cache, in training, validation and test.

    That makes room for other programs, not for this one, and waits for the device.

    Args:
        before_epoch: Whether before each epoch. Defaults to ``False``.
        after_epoch: Whether after each epoch. Defaults to ``True``.
        after_iter: Whether after each iteration. Defaults to ``False``.
    """

    def __init__(
        self,
        before_epoch: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        after_epoch: bool = True,  # noqa: FBT001, FBT002
        after_iter: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.before_epoch, self.after_epoch, self.after_iter = before_epoch, after_epoch, after_iter

    @override
    def _before_epoch(self, runner: RunView, mode: str = "train") -> None:
        self._empty(runner, is_due=self.before_epoch)

    @override
    def _after_epoch(self, runner: RunView, mode: str = "train") -> None:
        self._empty(runner, is_due=self.after_epoch)

    @override
    def _after_iter(self, runner: RunView, *batch: Any, mode: str = "train", **more: Any) -> None:
        self._empty(runner, is_due=self.after_iter)

    def _empty(self, runner: RunView, *, is_due: bool) -> None:
        # torch.cuda, torch.npu, torch.xpu and so on; the CPU has no cache.
        empty = getattr(getattr(torch, runner.device.type, None), "empty_cache", None)
        if is_due and empty is not None:
            empty()


class PrepareTTAHook(Hook):
    """Wrap the model in a :class:`~mm_runner.model.BaseTTAModel` for tests.

    Training, validation, checkpoints and ``runner.model`` use the bare model.

    Args:
        tta_cfg: Config of the ``BaseTTAModel``; its ``module`` is the model of the run.

    Raises:
        ConfigError: If ``tta_cfg`` does not fit.
        ComponentNotFoundError: If its ``type`` names nothing.

    Example:
        >>> hook = dict(type="PrepareTTAHook", tta_cfg=dict(type="my_package.tta:Averaged"))
    """

    def __init__(self, tta_cfg: Mapping[str, Any]) -> None:
        check_cfg(tta_cfg, MODELS, {"module": _MODEL}, where="tta_cfg")
        self.tta_cfg = dict(tta_cfg)

    @override
    def before_test(self, runner: RunView) -> None:
        # Not runner.model: hooks that load or average weights know it by its parameters' names.
        model = build_from_cfg(self.tta_cfg, MODELS, {"module": runner.model}, where="tta_cfg")
        runner.test_loop.use_model(model)


class SyncBuffersHook(Hook):
    """Average the floating-point buffers over the ranks, such as BatchNorm's running statistics.

    It does so after each training epoch and before each validation, so that results do not depend
    on the data of the first rank; and before hooks of the default priority, such as the EMA.
    """

    priority = "ABOVE_NORMAL"

    @override
    def after_train_epoch(self, runner: RunView) -> None:
        if runner.distributed:
            buffers = (buffer for buffer in runner.model.buffers() if buffer.is_floating_point())
            mm_dist.all_reduce_params(buffers, op="mean")

    @override
    def before_val_epoch(self, runner: RunView) -> None:
        if runner.is_training:
            self.after_train_epoch(runner)
