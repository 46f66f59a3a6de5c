"""What a run is, and where it is: the properties that hooks and loops read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_runner.model import unwrap_model
from mm_runner.optim import named_wrappers

from ._run_hooks import RunHooks

if TYPE_CHECKING:
    import logging
    from pathlib import Path

    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    from mm_dist import DistInfo
    from mm_runner.evaluator import Evaluator
    from mm_runner.reporting import RunConsole

    from ._logs import RunLogs
    from ._seed import RunSeed

__all__ = ["RunFacts"]


class RunFacts(RunHooks):
    """Answers under MMEngine's names; the constructor of the Runner sets what they are read from.

    Attributes:
        dist_info: The place of this process among the others.
        model: The model, in its wrapper.
        optim_wrapper: The optimizer wrapper, once ``train`` has built it.
        train_loop: The training loop, once ``train`` has built it.
        val_loop: The validation loop, once it is built.
        test_loop: The test loop, once it is built.
    """

    dist_info: DistInfo
    model: nn.Module
    optim_wrapper: Any
    train_loop: Any
    val_loop: Any
    test_loop: Any
    _logs: RunLogs
    _seed: RunSeed

    # What the run is.

    @property
    def work_dir(self) -> Path:
        """Where checkpoints go."""
        return self._logs.work_dir

    @property
    def log_dir(self) -> Path:
        """Where this run's log, scalars and configuration go."""
        return self._logs.log_dir

    @property
    def timestamp(self) -> str:
        """When the run was started, as the name of its log directory."""
        return self._logs.timestamp

    @property
    def experiment_name(self) -> str:
        """The name given, with the timestamp."""
        return self._logs.experiment_name

    @property
    def logger(self) -> logging.Logger:
        """Logs to the console and the run's file, on the main process."""
        return self._logs.logger

    @property
    def console(self) -> RunConsole:
        """Prints lines and the progress bar."""
        return self._logs.console

    @property
    def config_text(self) -> str:
        """The resolved configuration, as YAML."""
        return self._logs.config_text

    @property
    def launcher(self) -> str:
        """What started this process: ``"none"``, ``"pytorch"``, ``"slurm"``, ``"mpi"``, ..."""
        return self.dist_info.launcher

    @property
    def distributed(self) -> bool:
        """Whether this process belongs to a process group."""
        return self.dist_info.backend is not None

    @property
    def rank(self) -> int:
        """Index of this process among all."""
        return self.dist_info.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.dist_info.world_size

    @property
    def device(self) -> Any:
        """The device of this process."""
        return self.dist_info.device

    @property
    def deterministic(self) -> bool:
        """Whether deterministic algorithms were asked for."""
        return self._seed.deterministic

    @property
    def seed(self) -> int:
        """What all random numbers of the run, and the order of its data, come from."""
        return self._seed.value

    @property
    def loader_generator(self) -> torch.Generator:
        """Seeds the workers of all loaders, and nothing else."""
        return self._seed.loader_generator

    @property
    def model_name(self) -> str:
        """Class name of the model inside its wrapper."""
        return type(unwrap_model(self.model)).__name__

    # Where the run is. The numbers are 0 without a training loop.

    @property
    def epoch(self) -> int:
        """Number of epochs done."""
        return self.train_loop.epoch if self.train_loop is not None else 0

    @property
    def iter(self) -> int:
        """Number of training steps done."""
        return self.train_loop.iter if self.train_loop is not None else 0

    @property
    def max_epochs(self) -> int:
        """Number of epochs to do."""
        return self.train_loop.max_epochs if self.train_loop is not None else 0

    @property
    def max_iters(self) -> int:
        """Number of training steps to do."""
        return self.train_loop.max_iters if self.train_loop is not None else 0

    @property
    def holds_gradients(self) -> bool:
        """Whether gradients are accumulated that no optimizer step has taken in yet.

        They are in no checkpoint: one that is due now is saved after the next optimizer step.
        """
        wrappers = (
            named_wrappers(self.optim_wrapper).values() if self.optim_wrapper is not None else ()
        )
        return any(not _is_between_windows(wrapper) for wrapper in wrappers)

    @property
    def val_begin(self) -> int:
        """The first epoch, or step, that is followed by a validation; 1 without a training loop."""
        return self.train_loop.val_begin if self.train_loop is not None else 1

    @property
    def val_interval(self) -> int:
        """Epochs, or steps, between two validations; 1 without a training loop."""
        return self.train_loop.val_interval if self.train_loop is not None else 1

    # The parts of the loops, which are built when train, val or test needs them.

    @property
    def train_dataloader(self) -> DataLoader[Any]:
        """The training batches, once :meth:`train` has built them."""
        return _built(self.train_loop, "train").dataloader  # type: ignore[no-any-return]

    @property
    def val_dataloader(self) -> DataLoader[Any]:
        """The validation batches, once they are built."""
        return _built(self.val_loop, "val").dataloader  # type: ignore[no-any-return]

    @property
    def val_evaluator(self) -> Evaluator:
        """The metrics of the validation, once they are built."""
        return _built(self.val_loop, "val").evaluator  # type: ignore[no-any-return]

    @property
    def test_dataloader(self) -> DataLoader[Any]:
        """The test batches, once they are built."""
        return _built(self.test_loop, "test").dataloader  # type: ignore[no-any-return]

    @property
    def test_evaluator(self) -> Evaluator:
        """The metrics of the test, once they are built."""
        return _built(self.test_loop, "test").evaluator  # type: ignore[no-any-return]


def _built(loop: Any, phase: str) -> Any:
    if loop is None:
        raise AttributeError(
            f"The {phase} loop, with its dataloader, is built by {phase}(), and was not asked for "
            "yet. A hook finds it from before_run on; Runner.build_dataloader(cfg) builds a "
            "dataloader at any time."
        )
    return loop


def _is_between_windows(wrapper: Any) -> bool:
    return bool(wrapper.should_update()) if hasattr(wrapper, "should_update") else True
