"""The Runner: composes the parts of a run, and trains, validates and tests with them."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mm_runner.checkpoint import ShardWriter
from mm_runner.hooks import build_hooks
from mm_runner.loops import AbstractTrainLoop
from mm_runner.model import Supervised, unwrap_model
from mm_runner.optim import build_optim_wrapper, holds_gradients
from mm_runner.registry import prepare_libraries
from mm_runner.reporting import build_log_processor

from . import _resume
from ._attributes import loop_number, loop_part, of_loop, training_part
from ._checks import run_arguments
from ._environment import fix_cublas_workspace, seed_run, set_up_process, use_seed
from ._interruption import Interruption
from ._logs import RunLogs, plain_config
from ._model import build_model, wrap_model
from ._optimizers import build_schedules, scale_rates
from ._recipe import Recipe, build_evaluator_of, build_loader, built_by
from ._running import evaluate, predict, train
from ._sharded import data_place
from ._state import RunState, write_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from mm_dist import DistInfo


class Runner:
    """Train, validate and test a model as a configuration says.

    The constructor builds and wraps the model; loops, optimizer and schedules are built when they
    are needed, by the ``build_*`` methods, which a subclass may override. Before ``train()`` any
    part may be assigned. Attributes are those of :class:`mm_runner.run_view.RunView`.

    Args:
        model: A :class:`mm_runner.model.BaseModel` or another module with its steps, or a config.
        work_dir: Directory of the checkpoints; each run logs to a directory of its own inside it.
        train_dataloader: A ``DataLoader`` or its config; ``batch_size`` is that of one process.
        train_cfg: ``dict(by_epoch=True, max_epochs=...)``, or a loop's config with ``type``.
        auto_scale_lr: ``dict(base_batch_size=..., enable=True)`` scales learning rates.
        optim_wrapper: A wrapper, its config, or several by name.
        param_scheduler: A schedule's config, or a list of them; of several wrappers, by name.
        val_evaluator: A metric, its config, a list of these, or an evaluator.
        default_hooks: Replaces default hooks by name; ``None`` removes one.
        custom_hooks: Further hooks or their configs.
        data_preprocessor: For a model given as a config without its own.
        load_from: Checkpoint, safetensors file or Hugging Face directory to take the weights from;
            ``dict(checkpoint=..., revise_keys=...)`` changes their names by regular expressions.
        resume: Continue from ``load_from``, or from the newest checkpoint in ``work_dir`` if any.
        launcher: ``"auto"``, ``"none"``, ``"pytorch"``, ``"slurm"`` or ``"mpi"``.
        env_cfg: ``cudnn_benchmark``, ``mp_cfg``, ``dist_cfg``, ``npu_cfg``, ``resource_limit``.
        log_processor: See :class:`mm_runner.reporting.LogProcessor`.
        log_level: As in :mod:`logging`.
        visualizer: ``dict(vis_backends=[...])``: where scalars go besides ``scalars.jsonl``.
        default_scope: Library whose registries are searched first.
        randomness: ``dict(seed=None, diff_rank_seed=False, deterministic=False)``.
        experiment_name: Put before the timestamp in the run's name.
        cfg: The full configuration, for keys without an argument, such as ``compile``.
        overwrite: Let a fresh training delete an earlier run's checkpoints; else it refuses.

    Raises:
        ConfigError: If an argument is wrong; the message names its path.
        ComponentNotFoundError: If a ``type`` names nothing.
        WorkDirError: If ``work_dir`` cannot be written.
    """

    model, optim_wrapper = training_part("model"), training_part("optim_wrapper")
    param_schedulers = training_part("param_schedulers")
    train_loop, val_loop, test_loop = loop_part("train"), loop_part("val"), loop_part("test")
    epoch, max_epochs = loop_number("epoch"), loop_number("max_epochs")
    iter, max_iters = loop_number("iter"), loop_number("max_iters")
    val_begin, val_interval = loop_number("val_begin", 1), loop_number("val_interval", 1)
    train_dataloader = of_loop("train", "dataloader")
    val_dataloader, val_evaluator = of_loop("val", "dataloader"), of_loop("val", "evaluator")
    test_dataloader, test_evaluator = of_loop("test", "dataloader"), of_loop("test", "evaluator")
    dist_info: DistInfo
    seed: int
    deterministic: bool
    has_own_seed: bool
    diff_rank_seed: bool

    def __init__(
        self,
        model: nn.Module | Mapping[str, Any],
        work_dir: str | Path,
        train_dataloader: Any = None,
        val_dataloader: Any = None,
        test_dataloader: Any = None,
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
        load_from: str | Mapping[str, Any] | None = None,
        resume: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        launcher: str = "auto",
        env_cfg: Mapping[str, Any] | None = None,
        log_processor: Any = None,
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
        self.recipe = recipe = Recipe(arguments, cfg, Runner)
        self.cfg, self._launcher = recipe.cfg, launcher
        self.is_training = self.is_resuming = False
        self.stage = ""  # of the hooks that act; the outermost, where a hook calls a stage
        vars(self)["param_schedulers"], self.assigned_parts = [], set[str]()
        self.loaded_progress: dict[str, int] = {}
        self.log_processor = built_by(self, "build_log_processor", log_processor)
        self.message_hub = self.log_processor.message_hub()
        reference = weakref.ref(self)  # the libraries must not keep the run alive
        prepare_libraries(arguments, lambda: getattr(reference(), "logger", None))
        self.hooks_list = build_hooks(default_hooks, custom_hooks)
        fix_cublas_workspace(randomness)  # before anything touches the device
        self.setup_env(env_cfg)
        info = self.dist_info
        self.rank, self.world_size, self.device = info.rank, info.world_size, info.device
        self.launcher, self.distributed = info.launcher, info.backend is not None
        self.data_rank, self.num_data_ranks = info.rank, info.world_size
        self.starting_point = _resume.StartingPoint(load_from, resume=resume)
        self._resume = resume  # OpenMMLab's libraries read it
        self.overwrite, self.owns_checkpoints = overwrite, False
        logs = RunLogs(self, work_dir, experiment_name, log_level, recipe.resolved, recipe.writers)
        self.logs, self.logger, self.console = logs, logs.logger, logs.console
        self.work_dir, self.log_dir, self.timestamp = logs.work_dir, logs.log_dir, logs.timestamp
        self.experiment_name, self.visualizer = logs.experiment_name, logs
        self._randomness_cfg = {"seed": None, **(randomness or {})}  # the libraries read it
        self.loader_generator = torch.Generator()  # of all loaders, and of nothing else
        self.set_randomness(**self._randomness_cfg)
        vars(self)["model"], self.compile_handle = recipe.build_model(self)
        self.data_rank, self.num_data_ranks = data_place(self)
        if self.diff_rank_seed and self.num_data_ranks < self.world_size:
            use_seed(self, self.seed)
        bare = unwrap_model(self.model)
        self.model_name = type(bare.net if isinstance(bare, Supervised) else bare).__name__
        self.interruption = Interruption()
        self.state, self.shard_writer = RunState(self), ShardWriter()
        if resume:  # the data are to be built with the seed of the checkpoint
            self.starting_point.find(self)
        self.dump_config()

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any]) -> Runner:
        """Build a Runner from a full configuration, whose keys are the arguments."""
        return cls(**run_arguments(cfg, Runner), cfg=cfg)

    def train(self) -> nn.Module:
        """Train, with the validations that are configured, and return the model in its wrapper.

        Raises:
            ConfigError: If training is not configured, or the configuration does not fit.
            CheckpointError: If resuming was asked for and no checkpoint can be read.
            WorkDirError: If ``work_dir`` is in use, or has checkpoints of an earlier run.
            RunStopped: After SIGTERM, SIGUSR1 or Ctrl-C, saved; train() called again continues.
        """
        return train(self)

    def val(self) -> dict[str, float]:
        """Validate once, and return the metrics, equal on all processes."""
        return evaluate(self, "val")

    def test(self) -> dict[str, float]:
        """Test once, and return the metrics, equal on all processes."""
        return evaluate(self, "test")

    def predict(self, loader: Any = None) -> Any:
        """Predict every sample once, as ``test()`` does, without metrics; all processes call this.

        Args:
            loader: A ``DataLoader``, or its config, that does not shuffle; by default
                ``test_dataloader``.

        Returns:
            On the main process the predictions for the whole dataset in its order, on the CPU, in
            the form that the model returns for a batch: tensors with a row for each sample, lists
            with an entry for each, or a tuple or dict of these. On the others ``None``.

        Raises:
            ConfigError: If there is no loader, it shuffles or drops samples, or the predictions
                have no entry for each sample.
        """
        return predict(self, loader)

    # Checkpoints; every process must call these.

    def save_checkpoint(self, out_dir: str | Path, filename: str, **options: Any) -> None:
        """Save the run to ``out_dir / filename``; see ``write_snapshot`` for the options."""
        write_snapshot(self, Path(out_dir) / filename, **options)

    load_or_resume = _resume.load_or_resume
    load_checkpoint = _resume.load_weights_of
    resume = _resume.resume_later

    # Build parts of the run, or others for a script.

    def setup_env(self, env_cfg: Mapping[str, Any] | None) -> None:
        """Join the other processes, and set the switches of ``env_cfg``; sets ``dist_info``."""
        self.dist_info = set_up_process(self._launcher, env_cfg)

    set_randomness = seed_run

    def build_log_processor(self, log_processor: Any) -> Any:
        """Build the log formatter."""
        return build_log_processor(log_processor)

    def build_model(self, model: Any) -> nn.Module:
        """Build the bare model."""
        return build_model(model)

    build_dataloader = staticmethod(build_loader)
    build_evaluator = staticmethod(build_evaluator_of)
    scale_lr = scale_rates
    build_param_scheduler = build_schedules

    def wrap_model(self, model_wrapper_cfg: Any, model: nn.Module) -> nn.Module:
        """Move the model to its device, and wrap it if the run is distributed."""
        return wrap_model(model, model_wrapper_cfg, self.cfg, self.dist_info)

    def build_train_loop(self, loop: Any) -> Any:
        """Build the training loop from ``train_cfg``, with the run's training batches."""
        return self.recipe.loop_of(self, "train", loop)

    def build_val_loop(self, loop: Any) -> Any:
        """Build the validation loop from ``val_cfg``."""
        return self.recipe.loop_of(self, "val", loop)

    def build_test_loop(self, loop: Any) -> Any:
        """Build the test loop from ``test_cfg``."""
        return self.recipe.loop_of(self, "test", loop)

    def build_optim_wrapper(self, optim_wrapper: Any) -> Any:
        """Build an optimizer wrapper, or several."""
        return build_optim_wrapper(self.model, optim_wrapper)

    @property
    def hooks(self) -> list[Any]:
        """The hooks in the order they act."""
        return self.hooks_list.hooks

    def call_hook(self, stage: str, **arguments: Any) -> None:
        """Call every hook's ``stage``: one of ``mm_runner.hooks.STAGES``, or your own."""
        loop = vars(self).get("train_loop")
        if isinstance(loop, AbstractTrainLoop):
            loop.enter_stage(stage)
        outer, self.stage = self.stage, self.stage or stage
        try:
            self.hooks_list.call(self, stage, **arguments)
        finally:
            self.stage = outer

    def register_hook(self, hook: Any, priority: int | str | None = None) -> None:
        """Add a hook or its config; it acts from the next call of a stage on."""
        self.hooks_list.add(hook, priority, where="register_hook")

    def register_custom_hooks(self, hooks: Sequence[Any]) -> None:
        """Add hooks or their configs, as in ``custom_hooks``."""
        self.hooks_list.add_all(hooks, where="register_custom_hooks")

    def get_hooks_info(self) -> str:
        """Return which hooks act at each stage, in their order and with priorities."""
        return self.hooks_list.info()

    @property
    def holds_gradients(self) -> bool:
        """Whether gradients are accumulated that no optimizer step has used yet."""
        return self.optim_wrapper is not None and holds_gradients(self.optim_wrapper)

    def write_scalars(
        self, phase: str, scalars: Mapping[str, Any], *, step: int, by_epoch: bool = False
    ) -> None:
        """Append a record of ``step`` steps to the run's scalars; ``by_epoch`` is its axis."""
        axis = {"axis": "epoch"} if by_epoch else {}
        epoch = self.epoch + (phase == "train")
        record = {"mode": phase, "epoch": epoch, "step": step, **scalars, **axis}
        self.logs.give("write", record)

    def dump_config(self) -> None:
        """Write the configuration, with changes of ``cfg``, to ``config.yaml``."""
        self.logs.dump_config(plain_config(self.cfg))
