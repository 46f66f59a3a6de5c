"""What a run is, and where it is: the properties that hooks and loops read."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError
from mm_runner.loops import uncounted
from mm_runner.model import eval_step_of, unwrap_model
from mm_runner.optim import named_wrappers

from ._lazy_loops import EarlyTrainLoop, LoopWhenAskedFor, leaving_generators
from ._overrides import built_by
from ._run_hooks import RunHooks

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator
    from pathlib import Path

    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    from mm_dist import DistInfo
    from mm_runner.evaluator import Evaluator
    from mm_runner.reporting import RunConsole

    from ._assigned import AssignedParts
    from ._loading import StartingPoint
    from ._logs import RunLogs
    from ._seed import RunSeed

__all__ = ["RunFacts"]


class RunFacts(RunHooks):
    """Answers under MMEngine's names; the constructor of the Runner sets what they are read from.

    Attributes:
        dist_info: The place of this process among the others.
        model: The model, in its wrapper.
        optim_wrapper: The optimizer wrapper, once ``train`` has built it.
        train_loop: The training loop, built when it is first asked for, or by ``train``; ``None``
            if training is not configured. Of several processes every one must ask. A training
            takes the same steps, whether or not it was asked for before; each training of a
            process has its own. One that is assigned, or its config, is used by the trainings that
            follow until one has ended well, like an assigned ``optim_wrapper``; one that a hook
            assigns in ``before_run``, by that which begins.
        val_loop: The validation loop, likewise; any process may ask.
        test_loop: The test loop, likewise.
    """

    train_loop: Any = LoopWhenAskedFor()
    val_loop: Any = LoopWhenAskedFor()
    test_loop: Any = LoopWhenAskedFor()

    dist_info: DistInfo
    model: nn.Module
    optim_wrapper: Any
    is_training: bool
    _logs: RunLogs
    _seed: RunSeed
    _start: StartingPoint
    _progress_of_weights: dict[str, int]
    _early: EarlyTrainLoop | None = None
    _in_construction: frozenset[str] = frozenset()
    _assigned: AssignedParts
    _train: dict[str, Any]
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
    def diff_rank_seed(self) -> bool:
        """Whether the random numbers of each process begin otherwise."""
        return self._seed.is_by_rank

    @property
    def loader_generator(self) -> torch.Generator:
        """Seeds the workers of all loaders, and nothing else."""
        return self._seed.loader_generator

    @property
    def model_name(self) -> str:
        """Class name of the model inside its wrapper."""
        return type(unwrap_model(self.model)).__name__

    # Where the run is. Without a training loop, which they do not build, the numbers are those of
    # the checkpoint that the weights are from; of a loop that was assigned, they are its own. Hooks
    # ask for them several times in a step.

    @property
    def epoch(self) -> int:
        """Number of epochs done."""
        loop = self.__dict__.get("train_loop")
        return loop.epoch if loop is not None else self._progress_of_weights["epoch"]

    @property
    def iter(self) -> int:
        """Number of training steps done."""
        loop = self.__dict__.get("train_loop")
        return loop.iter if loop is not None else self._progress_of_weights["iter"]

    @property
    def max_epochs(self) -> int:
        """Number of epochs to do."""
        loop = self.__dict__.get("train_loop")
        return loop.max_epochs if loop is not None else 0

    @property
    def max_iters(self) -> int:
        """Number of training steps to do."""
        loop = self.__dict__.get("train_loop")
        return loop.max_iters if loop is not None else 0

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
        loop = self.__dict__.get("train_loop")
        return loop.val_begin if loop is not None else 1

    @property
    def val_interval(self) -> int:
        """Epochs, or steps, between two validations; 1 without a training loop."""
        loop = self.__dict__.get("train_loop")
        return loop.val_interval if loop is not None else 1

    # The parts of the loops, which are built when they are first asked for, so that a script can
    # change them before train(), val() or test().

    @property
    def train_dataloader(self) -> DataLoader[Any]:
        """The training batches, built when they are first asked for, by every process."""
        return uncounted(self._configured("train").dataloader)  # type: ignore[no-any-return]

    @property
    def val_dataloader(self) -> DataLoader[Any]:
        """The validation batches, built when they are first asked for."""
        return self._configured("val").dataloader  # type: ignore[no-any-return]

    @property
    def val_evaluator(self) -> Evaluator:
        """The metrics of the validation, built when they are first asked for."""
        return self._configured("val").evaluator  # type: ignore[no-any-return]

    @property
    def test_dataloader(self) -> DataLoader[Any]:
        """The test batches, built when they are first asked for."""
        return self._configured("test").dataloader  # type: ignore[no-any-return]

    @property
    def test_evaluator(self) -> Evaluator:
        """The metrics of the test, built when they are first asked for."""
        return self._configured("test").evaluator  # type: ignore[no-any-return]

    def built_loop(self, phase: str) -> Any:
        """Return the loop of ``"train"``, ``"val"`` or ``"test"`` if it is built, else ``None``."""
        return vars(self).get(f"{phase}_loop")

    def build_loop(self, phase: str) -> Any:
        """Return the loop of a phase, built unless it is; ``None`` if it is not configured.

        While the loop is being built it is ``None``, too. Random numbers that are drawn in it are
        not taken from those of the run.

        Raises:
            ConfigError: If a config does not fit.
        """
        name = f"{phase}_loop"
        if name in vars(self):
            return vars(self)[name]
        if phase in self._in_construction:
            return None
        run: Any = self
        configs = {"train": self._train, "val": self._val, "test": self._test}[phase]
        loop: Any = None
        if configs and phase == "train":
            self._start.settle_seed(run)
            assigned = self._assigned.get(name)
            with self._constructing(phase):
                cfg = configs["train_cfg"] if assigned is None else assigned
                self._early = EarlyTrainLoop(run, cfg)
            loop = self._early.loop
        elif configs:
            eval_step_of(run.model, f"{phase}_step")
            with self._constructing(phase), leaving_generators(self.device):
                loop = built_by(run, f"build_{phase}_loop", configs[f"{phase}_cfg"])
        self._keep_part(name, loop)
        return loop

    def _keep_part(self, name: str, part: Any) -> None:
        """Store what the run has built; assigned, it would count as the user's."""
        object.__setattr__(self, name, part)

    @contextmanager
    def _constructing(self, phase: str) -> Iterator[None]:
        """Let what asks for the loop of ``phase`` in the block not build another one."""
        before = self._in_construction
        self._in_construction = before | {phase}
        try:
            yield
        finally:
            self._in_construction = before

    def _configured(self, phase: str) -> Any:
        if phase in self._in_construction:
            parts, arguments = f"{phase}_dataloader", "'dataloader'"
            if phase != "train":
                parts, arguments = f"{parts} or {phase}_evaluator", f"{arguments} or 'evaluator'"
            raise ConfigError(
                f"{parts} was asked for while the {phase} loop, whose it is, is being built. The "
                f"loop gets it as its argument {arguments}: use that."
            )
        loop = self.build_loop(phase)
        if loop is None:
            last = "optim_wrapper" if phase == "train" else f"{phase}_evaluator"
            raise AttributeError(
                f"The Runner has no {phase} loop: it got no {phase}_dataloader, {phase}_cfg and "
                f"{last}. Give these three."
            )
        return loop


def _is_between_windows(wrapper: Any) -> bool:
    return bool(wrapper.should_update()) if hasattr(wrapper, "should_update") else True
