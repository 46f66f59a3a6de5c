"""The run as hooks and loops see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping
    from pathlib import Path

    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    from mm_compile import CompileHandle
    from mm_dist import DistInfo
    from mm_runner.config import ConfigDict
    from mm_runner.evaluator import Evaluator
    from mm_runner.hooks import Hook
    from mm_runner.hooks._hook_list import HookList
    from mm_runner.reporting import LogProcessor, MessageHub, RunConsole
    from mm_runner.runner._interruption import Interruption
    from mm_runner.runner._logs import RunLogs

__all__ = ["RunView"]


class RunView(Protocol):
    """What a run promises to hooks, loops and metrics; :class:`mm_runner.Runner` provides it.

    The names are those that hooks and loops written for MMEngine's Runner read.

    Attributes:
        cfg: The full configuration.
        model: The model, in its wrapper.
        compile_handle: What :func:`mm_compile.compile_model` returned, ``None`` without
            ``cfg.compile``.
        optim_wrapper: The optimizer wrapper, once training has begun.
        param_schedulers: The schedules; of several optimizers, by name.
        train_loop: The training loop, ``None`` if training is not configured. Likewise
            ``val_loop`` and ``test_loop``.
        hooks: The hooks in the order they act.
        data_rank: Number of this process among those that see different data.
        num_data_ranks: How many these are; fewer than ``world_size`` where layers are split over
            processes, of which all see the same batches.
        epoch: Number of epochs done; during the hooks after an epoch, without that epoch.
        iter: Number of steps done; during the hooks after a step, without that step.
        is_training: Whether ``train()`` is under way.
        is_resuming: Whether the training continues another one.
        holds_gradients: Whether gradients are accumulated that no optimizer step has used yet.
    """

    cfg: ConfigDict
    dist_info: DistInfo
    rank: int
    world_size: int
    data_rank: int
    num_data_ranks: int
    distributed: bool
    device: torch.device

    model: nn.Module
    compile_handle: CompileHandle | None
    optim_wrapper: Any
    param_schedulers: Any
    train_loop: Any
    val_loop: Any
    test_loop: Any
    train_dataloader: DataLoader[Any]
    val_dataloader: DataLoader[Any]
    test_dataloader: DataLoader[Any]
    val_evaluator: Evaluator
    test_evaluator: Evaluator
    hooks_list: HookList
    interruption: Interruption
    seed: int
    loader_generator: torch.Generator

    epoch: int
    iter: int
    max_epochs: int
    max_iters: int
    val_begin: int
    val_interval: int
    is_training: bool
    is_resuming: bool

    work_dir: Path
    log_dir: Path
    timestamp: str
    experiment_name: str
    logger: logging.Logger
    console: RunConsole
    log_processor: LogProcessor
    message_hub: MessageHub
    visualizer: RunLogs

    @property
    def hooks(self) -> list[Hook]: ...  # noqa: D102 - see above
    @property
    def holds_gradients(self) -> bool: ...  # noqa: D102

    def call_hook(self, stage: str, **arguments: Any) -> None:
        """Let every hook act at ``stage``."""

    def register_hook(self, hook: Any, priority: int | str | None = None) -> None:
        """Add a hook, which acts from the next call of a stage on."""

    def build_dataloader(
        self,
        dataloader: Any,
        seed: int | None = None,
        diff_rank_seed: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
    ) -> Any:
        """Build a dataloader from its config."""

    def build_evaluator(self, evaluator: Any) -> Any:
        """Build an evaluator from its config."""

    def save_checkpoint(self, out_dir: str | Path, filename: str, **options: Any) -> None:
        """Save the run; every process must call this."""

    def write_scalars(
        self, phase: str, scalars: Mapping[str, Any], *, step: int, by_epoch: bool = False
    ) -> None:
        """Append a record to the run's files of scalars."""
