"""The Runner: what a training run consists of, and the order it happens in."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from mm_runner.config import ConfigDict
from mm_runner.crash import keep_crash
from mm_runner.errors import ConfigError, RunStopped
from mm_runner.hooks import build_hooks
from mm_runner.model import train_step_of
from mm_runner.reporting import writer_configs
from mm_runner.validation import validate_run

from ._assigned import AssignedParts
from ._checks import (
    check_there,
    checked_cfg,
    checked_mapping,
    checked_phases,
    refuse_misplaced,
    unknown_keys,
    without_variables,
)
from ._collate_hint import explaining_lists
from ._compiling import RunCompiler
from ._data_begin import DataBegin
from ._ending import cleaning_up, run_to_its_end
from ._environment import fix_cublas_workspace
from ._interruption import Interruption
from ._library_warnings import telling_warnings_of
from ._live_run import holding_work_dir
from ._loading import StartingPoint
from ._logs import RunLogs, plain_config
from ._memory_format import use_channels_last
from ._overrides import built_by, check_environment, check_seeded
from ._parts import PartsWriting
from ._receipt import RunReceipt
from ._removal import tell_removal
from ._savable import check_savable
from ._script_api import ScriptApi
from ._seed import RunSeed
from ._snapshot import write_snapshot
from ._summary import tell_start
from ._unvalidated import tell_unvalidated
from ._wrapping import tell_uncalled_step, with_preprocessor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from torch import nn
    from torch.utils.data import DataLoader

    from mm_runner.checkpoint import BackgroundWriter
    from mm_runner.reporting import LogProcessor

__all__ = ["Runner"]


class Runner(ScriptApi):
    """Trains, validates and tests a model as its configuration says.

    The arguments are MMEngine's. The constructor joins the other processes, seeds, opens the work
    directory, builds and wraps the model; the rest is built when ``train``, ``val`` or ``test``
    needs it, or a script asks for it. All of it is built by methods that a subclass may override:
    ``build_model``, ``wrap_model``, ``build_train_loop``, ``build_optim_wrapper`` and so on.

    Args:
        model: A module with ``train_step``, ``val_step`` and ``test_step`` (see
            :class:`mm_runner.model.BaseModel`), or its config. If it has ``init_weights()``, that
            is called now where training is configured.
        work_dir: Where checkpoints go; logs go to a directory of the run's own inside it.
        train_dataloader: A ``DataLoader`` or its config; ``batch_size`` is that of one process.
        val_dataloader: Likewise, for validation.
        test_dataloader: Likewise, for the test.
        train_cfg: ``dict(by_epoch=True, max_epochs=..., val_begin=1, val_interval=1)``, or a loop's
            config with ``type``.
        val_cfg: ``dict()`` or a loop's config.
        test_cfg: ``dict()`` or a loop's config.
        auto_scale_lr: ``dict(base_batch_size=..., enable=True)`` scales the learning rate by the
            batch of the whole run, accumulation included.
        optim_wrapper: A wrapper, or ``dict(type='OptimWrapper', optimizer=dict(type=...), ...)``;
            several: an ``OptimWrapperDict``, a dict of wrappers by name, or
            ``dict(constructor='MultiOptimWrapperConstructor', ...)``. The model's own
            ``train_step`` then says which of them steps when.
        param_scheduler: Config of a schedule, or a list of them; for several wrappers also a dict
            of these by name.
        val_evaluator: A metric, its config, or a list of these; or an evaluator or its config,
            ``dict(metrics=...)``.
        test_evaluator: Likewise, for the test.
        default_hooks: Replaces default hooks by name: ``runtime_info``, ``timer``,
            ``sampler_seed``, ``logger``, ``param_scheduler``, ``checkpoint``; ``None`` removes one.
        custom_hooks: Further hooks or their configs.
        data_preprocessor: For a model given as a config without its own.
        load_from: Checkpoint to take the weights from.
        resume: Go on from ``load_from``, or from the newest readable checkpoint in ``work_dir``;
            without one, train from the start.
        launcher: ``"auto"`` finds torchrun, Slurm or MPI by itself; or ``"none"``, ``"pytorch"``,
            ``"slurm"``, ``"mpi"``.
        env_cfg: ``cudnn_benchmark``, ``mp_cfg``, ``dist_cfg``, ``npu_cfg``, ``resource_limit``.
        log_processor: ``dict(window_size=10, custom_cfg=[...], num_digits=4)``, see
            :class:`mm_runner.reporting.LogProcessor`.
        log_level: As in :mod:`logging`.
        visualizer: ``dict(vis_backends=[dict(type='TensorboardVisBackend'), ...])`` says where
            scalars go besides ``scalars.jsonl``; nothing is drawn.
        default_scope: Accepted so that MMEngine's configs load; names have no scopes here.
        randomness: ``dict(seed=None, diff_rank_seed=False, deterministic=False)``.
        experiment_name: Put before the timestamp in the run's name.
        cfg: The full configuration: ``compile``, ``model_wrapper_cfg``,
            ``find_unused_parameters``, ``sync_bn``, ``activation_checkpointing``,
            ``efficient_conv_bn_eval``, ``resume_data``, ``on_world_size_change`` and
            ``crash_bundle`` (True by default: a training that fails leaves one in its log
            directory) are read from it.
        overwrite: Let a training that does not resume delete the checkpoints of an earlier run in
            ``work_dir``; by default it refuses to begin.

    Raises:
        ConfigError: If an argument is wrong; the message names its path.
        ComponentNotFoundError: If a ``type`` names nothing.
        WorkDirError: If ``work_dir`` cannot be written.
        mm_dist.LaunchError: If ``launcher`` names one that did not start this process.

    Example:
        >>> runner = Runner(
        ...     model=Classifier(),
        ...     work_dir="work_dir",
        ...     train_dataloader=dict(batch_size=32, dataset=dataset),
        ...     optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1)),
        ...     train_cfg=dict(by_epoch=True, max_epochs=3),
        ... )  # doctest: +SKIP
        >>> runner.train()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module | Mapping[str, Any],
        work_dir: str | Path,
        train_dataloader: DataLoader[Any] | Mapping[str, Any] | None = None,
        val_dataloader: DataLoader[Any] | Mapping[str, Any] | None = None,
        test_dataloader: DataLoader[Any] | Mapping[str, Any] | None = None,
        train_cfg: Mapping[str, Any] | None = None,
        val_cfg: Mapping[str, Any] | None = None,
        test_cfg: Mapping[str, Any] | None = None,
        auto_scale_lr: Mapping[str, Any] | None = None,
        optim_wrapper: Any = None,
        param_scheduler: Any = None,
        val_evaluator: Any = None,
        test_evaluator: Any = None,
        default_hooks: Mapping[str, Any] | None = None,
        custom_hooks: Sequence[Any] | None = None,
        data_preprocessor: Any = None,
        load_from: str | None = None,
        resume: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        launcher: str = "auto",
        env_cfg: Mapping[str, Any] | None = None,
        log_processor: Mapping[str, Any] | LogProcessor | None = None,
        log_level: str | int = "INFO",
        visualizer: Any = None,
        default_scope: str | None = None,
        randomness: Mapping[str, Any] | None = None,
        experiment_name: str | None = None,
        cfg: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        arguments = {key: value for key, value in locals().items() if key not in ("self", "cfg")}
        self._assigned, self._scaled = AssignedParts(), WeakValueDictionary()
        self._data_begin = DataBegin()
        self.cfg = ConfigDict(checked_cfg(cfg, runner_arguments()))
        others = unknown_keys(self.cfg, runner_arguments())
        self._train, self._val, self._test = checked_phases(arguments, others)
        if param_scheduler is not None and not self._train:
            raise ConfigError(
                "param_scheduler was given without optim_wrapper; give both, or neither."
            )
        refuse_misplaced({**self.cfg, **arguments}, cfg)
        validate_run(arguments, self.cfg, Runner)
        self._param_scheduler_cfg = param_scheduler
        self._auto_scale_lr = checked_mapping(
            auto_scale_lr, "auto_scale_lr", ("base_batch_size", "enable")
        )
        self.log_processor = built_by(self, "build_log_processor", log_processor)
        self.message_hub = self.log_processor.message_hub()
        self.hooks_list = build_hooks(default_hooks, custom_hooks)

        fix_cublas_workspace(randomness)
        self._launcher = launcher
        self.setup_env(env_cfg)
        check_environment(self)
        self._seed = RunSeed(randomness, self.rank)
        self._start = StartingPoint(load_from, self._seed, resume=resume)
        self._overwrite, self._owns_checkpoints = overwrite, False
        self._progress_of_weights = {"epoch": 0, "iter": 0}
        config = {name: value for name, value in arguments.items() if value is not None}
        self._logs = RunLogs(
            work_dir,
            experiment_name,
            log_level,
            plain_config({**config, **without_variables(self.cfg)}),
            writer_configs(visualizer, self.cfg.get("log_writers")),
        )
        self.set_randomness(**self._seed.configured)
        check_seeded(self)

        built = built_by(self, "build_model", with_preprocessor(model, data_preprocessor))
        init_weights: Any = getattr(built, "init_weights", None)
        if self._train and init_weights is not None:
            self.logger.info(f"Weights are what {type(built).__name__}.init_weights() makes them.")
            init_weights()
        if self.cfg.get("channels_last"):
            use_channels_last(built)
        self._compiler = RunCompiler(self.cfg.get("compile"), self.work_dir)
        self.model, self.compile_handle = self._compiler.wrap(
            built,
            self.cfg,
            self.dist_info,
            lambda bare: built_by(self, "wrap_model", self.cfg.get("model_wrapper_cfg"), bare),
        )
        if self._train:
            tell_uncalled_step(self.model, self.logger)

        self._keep_part("optim_wrapper", None)
        self._keep_schedules([])
        self.interruption = Interruption()
        self._parts = PartsWriting()
        self._receipt = RunReceipt()
        self.is_training = False
        self.is_resuming = False
        self.dump_config()

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any]) -> Runner:
        """Build a Runner from one full configuration, whose keys are the constructor's arguments.

        Raises:
            ConfigError: If ``model`` or ``work_dir`` is missing.
        """
        others = unknown_keys(checked_cfg(cfg, runner_arguments()), runner_arguments())
        check_there(cfg, ("model", "work_dir"), others)
        known = {key: cfg[key] for key in runner_arguments() if key in cfg}
        return cls(**known, cfg=cfg)

    # What the run does.

    def train(self) -> nn.Module:
        """Train, with the validations that are configured.

        Returns:
            The model, in its wrapper.

        Raises:
            ConfigError: If training is not configured, or the configuration does not fit.
            CheckpointError: If resuming was asked for and no checkpoint can be read.
            WorkDirError: If another training is under way in ``work_dir``; or if this one starts
                afresh where another has left checkpoints, and ``overwrite`` was not given.
            RunStopped: If SIGTERM, SIGUSR1 or Ctrl-C came: a checkpoint is saved, and the program
                ends with status 75 or 130. Where it is caught, training again goes on from there.
        """
        if not self._train:
            raise ConfigError(
                "train() was called; the Runner got no train_dataloader, train_cfg and "
                "optim_wrapper. Give these three."
            )
        train_step_of(self.model)
        with self._holding_work_dir() as start_over:
            self._start.begin_training(self)
            self._build_training()
            if self._receipt not in self.hooks:
                self.register_hook(self._receipt)
            # The last two: a traceback must not be drawn over by the bar.
            with cleaning_up(self, self._parts.close, self.console.stop_progress, self._logs.flush):
                try:
                    self._train_as_built(start_over)
                except RunStopped:
                    self._start.go_on(self.interruption.saved, keeps_data=True)
                    raise
                except Exception as error:
                    if self.cfg.get("crash_bundle", True):
                        keep_crash(self, error)
                    raise
        return self.model

    def val(self) -> dict[str, float]:
        """Validate once, and return the metrics, equal on all processes."""
        return self._evaluate("val", self.build_loop("val"))

    def test(self) -> dict[str, float]:
        """Test once, and return the metrics, equal on all processes."""
        return self._evaluate("test", self.build_loop("test"))

    def write_scalars(
        self, phase: str, scalars: Mapping[str, Any], *, step: int, by_epoch: bool = False
    ) -> None:
        """Append a record to the run's files of scalars; only the main process does.

        Args:
            phase: ``"train"``, ``"val"`` or ``"test"``.
            scalars: Numbers by name.
            step: Training steps done.
            by_epoch: Let writers such as TensorBoard's draw it by epoch instead of by step.
        """
        # In training the epoch under way counts; after it, runner.epoch has moved on.
        epoch = self.epoch + (phase == "train")
        record = {"mode": phase, "epoch": epoch, "step": step, **scalars}
        self.check_directories()
        self._logs.write_scalars(record, by_epoch=by_epoch)

    def save_checkpoint(
        self,
        out_dir: str | Path,
        filename: str,
        *,
        save_optimizer: bool = True,
        save_param_scheduler: bool = True,
        meta: Mapping[str, Any] | None = None,
        mark_as_latest: bool = True,
        writer: BackgroundWriter | None = None,
        then: Callable[[], None] | None = None,
        in_parts: bool = False,
    ) -> None:
        """Save the run. Every process must call this; the main one writes.

        Args:
            out_dir: Where to.
            filename: Name of the file.
            save_optimizer: Include the optimizer and the loss scaler.
            save_param_scheduler: Include the schedules' positions.
            meta: Added to what the file says of itself.
            mark_as_latest: Let ``last_checkpoint`` name this file, so that resuming finds it.
            writer: Writes a copy while training goes on; without one the file is whole on return.
            then: Called on the main process once the file is whole and named.
            in_parts: Let each process write its part of a sharded model to a folder beside the
                file, so that nothing is gathered.

        Raises:
            CheckpointWriteError: On all processes, if the file cannot be written.
        """
        write_snapshot(
            self,
            Path(out_dir) / filename,
            meta=dict(meta or {}),
            save_optimizer=save_optimizer,
            save_param_scheduler=save_param_scheduler,
            mark_as_latest=mark_as_latest,
            writer=writer,
            then=then,
            parts=self._parts if in_parts else None,
        )

    def check_directories(self) -> None:
        """Warn if the log directory was removed while training, and write what is lost of it.

        Called where something is written anyway; on processes but the main one it does nothing.
        """
        if self.is_training:
            tell_removal(self, self._logs)

    # How it comes about.

    def _holding_work_dir(self) -> AbstractContextManager[Callable[[], None]]:
        """Keep other trainings out of the work directory, unless this one keeps nothing there."""
        if not self.interruption.saves:
            return nullcontext(lambda: None)
        is_fresh = self._start.is_fresh and not self._owns_checkpoints
        return holding_work_dir(
            self, is_fresh=is_fresh, overwrite=self._overwrite, load_from=self._start.load_from
        )

    def _train_as_built(self, start_over: Callable[[], None]) -> None:
        self.is_training = True
        with self._with_parts(), self.interruption.listening(self):
            self.call_hook("before_run")
            self._take_from_hooks()
            with self._assigned.settled():
                with self._start.beginning(self):
                    self.load_or_resume()
                check_savable(self)
                start_over()
                self._owns_checkpoints = True
                with telling_warnings_of("mm_amp", self.logger):
                    self.optim_wrapper.initialize_count_status(
                        self.model, self.iter, self.max_iters
                    )
                self._compiler.begin_training(self)
                self._logs.begin_anew()
                tell_start(self)
                tell_unvalidated(self)
                with explaining_lists(self):
                    run_to_its_end(self, self._receipt)
            self._receipt.tell(self)
            self.call_hook("after_run")

    def _evaluate(self, phase: str, loop: Any) -> dict[str, float]:
        if loop is None:
            raise ConfigError(
                f"{phase}() was called; the Runner got no {phase}_dataloader, {phase}_cfg and "
                f"{phase}_evaluator. Give these three."
            )
        self.call_hook("before_run")
        self.load_or_resume()
        try:
            with explaining_lists(self):
                metrics: dict[str, float] = loop.run()
        finally:
            if not self.is_training:
                self.console.stop_progress()
        self.call_hook("after_run")
        self._logs.flush()
        return metrics


def runner_arguments() -> tuple[str, ...]:
    """List the constructor's arguments that a full configuration may hold."""
    names = inspect.signature(Runner).parameters
    return tuple(name for name in names if name != "cfg")
