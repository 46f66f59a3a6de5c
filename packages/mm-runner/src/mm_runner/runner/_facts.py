"""What a run is, and where it is: the properties that hooks and loops read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_runner.model import eval_step_of, unwrap_model
from mm_runner.optim import named_wrappers

from ._building import build_eval_loop
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
    _val: dict[str, Any]
    _test: dict[str, Any]

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

    # The parts of the loops. Those of an evaluation are built when they are first asked for, so
    # that a script can change them before val() or test(). Those of a training are not: resuming
    # may change the seed that they are built with.

    @property
    def train_dataloader(self) -> DataLoader[Any]:
        """The training batches, once :meth:`train` has built them."""
        if self.train_loop is None:
            raise AttributeError(
                "The train loop, with its dataloader, is built by train(), and was not asked for "
                "yet. A hook finds it from before_run on; Runner.build_dataloader(cfg) builds a "
                "dataloader at any time."
            )
        return self.train_loop.dataloader  # type: ignore[no-any-return]

    @property
    def val_dataloader(self) -> DataLoader[Any]:
        """The validation batches, built when they are first asked for."""
        return self._evaluation("val").dataloader  # type: ignore[no-any-return]

    @property
    def val_evaluator(self) -> Evaluator:
        """The metrics of the validation, built when they are first asked for."""
        return self._evaluation("val").evaluator  # type: ignore[no-any-return]

    @property
    def test_dataloader(self) -> DataLoader[Any]:
        """The test batches, built when they are first asked for."""
        return self._evaluation("test").dataloader  # type: ignore[no-any-return]

    @property
    def test_evaluator(self) -> Evaluator:
        """The metrics of the test, built when they are first asked for."""
        return self._evaluation("test").evaluator  # type: ignore[no-any-return]

    def _evaluation(self, phase: str) -> Any:
        loop = self._build_eval_loop(phase)
        if loop is None:
            raise AttributeError(
                f"The Runner has no {phase} loop: it got no {phase}_dataloader, {phase}_cfg and "
                f"{phase}_evaluator. Give these three."
            )
        return loop

    def _build_eval_loop(self, phase: str) -> Any:
        """Return the loop of ``"val"`` or ``"test"``, built once; ``None`` if not configured."""
        configs = self._val if phase == "val" else self._test
        run: Any = self
        name = f"{phase}_loop"
        if configs and getattr(run, name) is None:
            eval_step_of(run.model, f"{phase}_step")
            setattr(run, name, build_eval_loop(run, phase, **configs))
        return getattr(run, name)


def _is_between_windows(wrapper: Any) -> bool:
    return bool(wrapper.should_update()) if hasattr(wrapper, "should_update") else True
