"""What a run compiles: its model, in the right order with wrapping, and its optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mm_compile
from mm_runner.hooks import CompileReportHook
from mm_runner.model import apply_module_settings, unwrap_model
from mm_runner.optim import named_wrappers

from ._wrapping import is_wrapped, synchronize_batch_norm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn

    from mm_dist import DistInfo
    from mm_runner.runner import Runner

__all__ = ["RunCompiler"]

# Beside the work directories, so that all runs of a project share it.
_CACHE_NAME = "compile_cache"
# Methods that a wrapper has of its own: compiled there, and after wrapping.
_STEPS = {"train_step", "val_step", "test_step"}


class RunCompiler:
    """Compiles what ``cfg.compile`` says, each part when it is due.

    Args:
        cfg: ``cfg.compile``: as :func:`mm_compile.compile_model` takes it; ``cache`` may also be
            True, for ``compile_cache`` beside the work directory.
        work_dir: Absolute.
    """

    def __init__(self, cfg: Any, work_dir: Path) -> None:
        if isinstance(cfg, Mapping) and cfg.get("cache") is True:
            cfg = {**cfg, "cache": str(work_dir.parent / _CACHE_NAME)}
        self._cfg = cfg
        self._optimizers: list[Any] = []

    def wrap(
        self,
        model: nn.Module,
        cfg: Mapping[str, Any],
        dist_info: DistInfo,
        wrap_model: Callable[[nn.Module], nn.Module],
    ) -> tuple[nn.Module, mm_compile.CompileHandle]:
        """Compile and wrap the model; nothing is compiled before the first call.

        Args:
            model: Wrapped or not.
            cfg: The full configuration.
            dist_info: The place of this process.
            wrap_model: Moves a model to its device, and wraps it if the run is distributed.

        Returns:
            The model, wrapped if the run is distributed, and the handle of what is compiled.

        Raises:
            ConfigError: If the model cannot be wrapped as ``cfg`` says.
            MMCompileError: If it cannot be compiled so.
        """
        if cfg.get("sync_bn") is not None:  # of norms that an earlier run has not made others
            apply_module_settings(unwrap_model(model), {})
        synchronize_batch_norm(model, cfg, dist_info)
        # Now that its modules are those that stay, and before anything is put around them.
        apply_module_settings(unwrap_model(model), cfg)
        if self._compiles_steps():
            wrapped = wrap_model(model)
            return wrapped, mm_compile.compile_model(wrapped, self._cfg)
        if not is_wrapped(model):
            model = model.to(dist_info.device)
        # Compiled before it is sharded: parameters are then gathered and freed by hooks around the
        # compiled code, and regions are recognised by their classes and the shapes of the whole.
        handle = mm_compile.compile_model(unwrap_model(model), self._cfg)
        try:
            return wrap_model(model), handle
        except Exception:
            handle.undo()  # the model is the user's, who may give it to another run
            raise

    def begin_training(self, runner: Runner) -> None:
        """Compile the optimizers if that is configured, and say how many steps are to come."""
        handle = runner.compile_handle
        compiles_optimizers = isinstance(self._cfg, Mapping) and self._cfg.get("optimizer")
        for wrapper in named_wrappers(runner.optim_wrapper).values():
            optimizer = wrapper.optimizer
            # One that was given ready made is the same in a second training.
            is_known = any(optimizer is known for known in self._optimizers)
            if compiles_optimizers and not is_known:
                handle.compile_optimizer(optimizer)
                self._optimizers.append(optimizer)
        handle.expect_steps(max(runner.max_iters - runner.iter, 0))
        is_told = any(isinstance(hook, CompileReportHook) for hook in runner.hooks)
        if handle.enabled and not is_told:
            runner.register_hook(CompileReportHook())
            self._tell_of_short_batch(runner)

    def _tell_of_short_batch(self, runner: Runner) -> None:
        loader = runner.train_dataloader
        is_dynamic = isinstance(self._cfg, Mapping) and self._cfg.get("dynamic") is True
        num_left = _size_of_short_batch(loader)
        if num_left and not is_dynamic:
            runner.logger.info(
                f"compile: the last batch of an epoch has a size of {num_left}, the others of "
                f"{loader.batch_size}: the model is compiled for it once more. "
                "train_dataloader=dict(drop_last=True) avoids that."
            )

    def _compiles_steps(self) -> bool:
        target = self._cfg.get("target") if isinstance(self._cfg, Mapping) else None
        names = [target] if isinstance(target, str) else target or []
        return not _STEPS.isdisjoint(name for name in names if isinstance(name, str))


def _size_of_short_batch(loader: Any) -> int:
    """Return how many samples the last batch of an epoch has if it is a short one, else 0."""
    has_length = loader.batch_size and hasattr(loader.sampler, "__len__")
    if not has_length or loader.drop_last or len(loader.sampler) < loader.batch_size:
        return 0
    return int(len(loader.sampler) % loader.batch_size)
