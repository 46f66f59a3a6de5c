"""What builds the parts of a run: methods of the Runner that a subclass may override."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mm_runner.errors import ConfigError
from mm_runner.evaluator import Evaluator, build_evaluator
from mm_runner.optim import build_optim_wrapper, build_param_schedulers
from mm_runner.reporting import LogProcessor, build_log_processor

from ._building import build_eval_loop, build_loader_of_script, build_train_loop
from ._checks import checked_mapping
from ._environment import fix_cublas_workspace, set_up_process
from ._epoch_length import epoch_length
from ._facts import RunFacts
from ._making import part_of_run
from ._optimizers import scale_rates_of_run
from ._wrapping import build_model, synchronize_batch_norm, wrap_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from torch.utils.data import DataLoader

    from mm_runner.config import ConfigDict
    from mm_runner.optim import ParamScheduler

__all__ = ["BuildSteps"]


class BuildSteps(RunFacts):
    """Builds single parts of a run, under MMEngine's names.

    The Runner builds its own parts by these methods, so that one which a subclass overrides changes
    the run; called by a script they return a further part, and leave the run as it is.

    Attributes:
        build_order: What :meth:`train` calls to build its parts, in this order, once the model is
            there. A subclass may give another order, and add methods of its own, which are called
            without arguments.
    """

    build_order: ClassVar[tuple[str, ...]] = (
        "build_train_loop",
        "build_optim_wrapper",
        "scale_lr",
        "build_param_scheduler",
        "build_val_loop",
    )

    cfg: ConfigDict
    param_schedulers: list[ParamScheduler] | dict[str, list[ParamScheduler]]
    _launcher: str
    _auto_scale_lr: dict[str, Any]
    _param_scheduler_cfg: Any

    # Called by the constructor, in this order.

    def build_log_processor(
        self, log_processor: LogProcessor | Mapping[str, Any] | None
    ) -> LogProcessor:
        """Return what says what is in a log line; the first thing that a Runner builds.

        Args:
            log_processor: Itself, or its config; ``None`` for the default one.

        Raises:
            ConfigError: If it is neither, or the arguments do not fit.
            ComponentNotFoundError: If an import path leads to nothing.
        """
        return build_log_processor(log_processor)

    def setup_env(self, env_cfg: Mapping[str, Any] | None) -> None:
        """Join the other processes, and set the switches of ``env_cfg``; sets ``dist_info``.

        Args:
            env_cfg: As of the constructor.

        Raises:
            ConfigError: If a key is unknown, or a value cannot be used.
            mm_dist.LaunchError: If the launcher's variables are missing.
        """
        self.dist_info = set_up_process(self._launcher, env_cfg)

    def set_randomness(
        self,
        seed: int | None,
        diff_rank_seed: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        deterministic: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Choose the seed of the run, and seed every generator of this process by it.

        Called again, before anything is built with the seed, it begins random numbers anew.

        Args:
            seed: ``None`` draws one, alike on all processes; all must call this then.
            diff_rank_seed: Let the generators of each process begin otherwise. Defaults to
                ``False``.
            deterministic: Allow deterministic algorithms only. Defaults to ``False``.

        Raises:
            ConfigError: If ``seed`` is no seed.
        """
        fix_cublas_workspace({"deterministic": deterministic})
        self._seed.choose(
            self.logger, seed=seed, diff_rank_seed=diff_rank_seed, deterministic=deterministic
        )

    def build_model(self, model: nn.Module | Mapping[str, Any]) -> nn.Module:
        """Return the bare model, on whatever device it was made.

        Args:
            model: A module, or the config of one; that of the run has its ``data_preprocessor``.

        Raises:
            ComponentNotFoundError: If its ``type`` names nothing.
            ConfigError: If it is neither, or the arguments do not fit.
        """
        return build_model(model)

    def wrap_model(
        self, model_wrapper_cfg: Mapping[str, Any] | None, model: nn.Module
    ) -> nn.Module:
        """Return the model on the device of this process, wrapped if the run is distributed.

        A model that is wrapped already is returned as it is. In a run that compiles, what is given
        here is compiled already.

        Args:
            model_wrapper_cfg: A wrapper's config; ``None`` for the default wrapper.
            model: On any device.

        Raises:
            ConfigError: If the model is wrapped already and ``model_wrapper_cfg`` is given, or
                that is no config.
        """
        if "model" in vars(self):  # that of the run was, before it was compiled
            synchronize_batch_norm(model, self.cfg, self.dist_info)
        return wrap_model(model, model_wrapper_cfg, self.cfg, self.dist_info)

    # Called by train(), as build_order says.

    def build_train_loop(self, loop: Any) -> Any:
        """Return a training loop with the run's training batches; every process must call this.

        Args:
            loop: Its config, as ``train_cfg``; a loop, an object with ``run()``, is returned as it
                is.

        Raises:
            ConfigError: If the config does not fit, or the Runner got no ``train_dataloader``.
        """
        if hasattr(loop, "run"):
            return loop
        self._check_configured("train", "build_train_loop")
        run: Any = self
        self._start.settle_seed(run)  # a script may ask for it before train()
        return build_train_loop(run, self._train["train_dataloader"], loop)

    def build_optim_wrapper(self, optim_wrapper: Any) -> Any:
        """Return an optimizer wrapper over the model's parameters, or several of them.

        Args:
            optim_wrapper: As of the constructor; a wrapper is returned as it is.

        Raises:
            ComponentNotFoundError: If a ``type`` or ``constructor`` names nothing.
            ConfigError: If a key is missing or unknown, or nothing in the model is trainable.
        """
        return build_optim_wrapper(self.model, optim_wrapper)

    def scale_lr(self, optim_wrapper: Any, auto_scale_lr: Mapping[str, Any] | None = None) -> None:
        """Scale the learning rates by the batch of the whole run, accumulation included.

        Args:
            optim_wrapper: Whose learning rates are changed; one, or several.
            auto_scale_lr: ``dict(base_batch_size=..., enable=True)``. Defaults to ``None``, which
                like ``enable=False`` leaves them as they are.

        Raises:
            ConfigError: If ``base_batch_size`` is missing, how many samples a batch has is not
                known, or schedules are built already, which go on from the rates they found.
        """
        known = ("base_batch_size", "enable")
        cfg = checked_mapping(auto_scale_lr, "auto_scale_lr", known)
        if cfg.get("enable", False):
            run: Any = self
            scale_rates_of_run(run, optim_wrapper, cfg)

    def build_param_scheduler(
        self, scheduler: Any
    ) -> list[ParamScheduler] | dict[str, list[ParamScheduler]]:
        """Return schedules over ``optim_wrapper``; of several wrappers, by name.

        Args:
            scheduler: As ``param_scheduler`` of the constructor.

        Raises:
            ConfigError: If there is no ``optim_wrapper`` yet, or the config does not fit.
        """
        self._check_configured("train", "build_param_scheduler")
        if self.optim_wrapper is None:
            raise ConfigError(
                "build_param_scheduler() was called, and optim_wrapper is not built yet, whose "
                "settings it schedules. In a script: runner.optim_wrapper = "
                "runner.build_optim_wrapper(cfg)."
            )
        loader = self.train_dataloader  # which is built with the loop, as the lengths are
        return build_param_schedulers(
            self.optim_wrapper,
            scheduler,
            num_epochs=self.max_epochs,
            num_iters=self.max_iters,
            epoch_length=epoch_length(loader, self.world_size),
        )

    # Called when the loop is needed: by train(), val() and test(), or whoever asks for it before.

    def build_val_loop(self, loop: Any) -> Any:
        """Return a validation loop with the run's ``val_dataloader`` and ``val_evaluator``.

        Args:
            loop: Its config, as ``val_cfg``; a loop, an object with ``run()``, is returned as it
                is.

        Raises:
            ConfigError: If a config does not fit, or the Runner got no ``val_dataloader``.
        """
        return self._eval_loop("val", loop)

    def build_test_loop(self, loop: Any) -> Any:
        """Return a test loop, as :meth:`build_val_loop` does for the validation."""
        return self._eval_loop("test", loop)

    @staticmethod
    def build_dataloader(
        dataloader: DataLoader[Any] | Mapping[str, Any],
        seed: int | None = None,
        diff_rank_seed: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
    ) -> DataLoader[Any]:
        """Build a dataloader from its config, as a run of these processes would.

        The loops of a run get theirs by this method; an override that ends in this one gets what
        the run would have had.

        Args:
            dataloader: A ``DataLoader`` or its config; without a sampler, samples come in order,
                but for the training of a run.
            seed: Of samplers and workers; ``None`` draws one and shares it among the processes, or
                in a run is its own.
            diff_rank_seed: Let the workers of each process draw by a seed of its own, as they do
                anyway.

        Raises:
            ConfigError: If a key is missing, unknown or of the wrong type.
        """
        del diff_rank_seed
        return build_loader_of_script(dataloader, seed)

    @staticmethod
    def build_evaluator(evaluator: Any) -> Evaluator:
        """Build an evaluator; those of a run's loops are built by this method.

        Args:
            evaluator: As ``val_evaluator``: a metric, the config of one, a list of these, or
                ``dict(metrics=...)``; an evaluator is returned as it is.

        Raises:
            ComponentNotFoundError: If a ``type`` names nothing.
            ConfigError: If it is nothing of these, or arguments do not fit.
        """
        part = part_of_run()
        return build_evaluator(evaluator, where="evaluator" if part is None else part.where)

    def _eval_loop(self, phase: str, loop: Any) -> Any:
        if hasattr(loop, "run"):
            return loop
        self._check_configured(phase, f"build_{phase}_loop")
        run: Any = self
        configs = self._val if phase == "val" else self._test
        return build_eval_loop(
            run, phase, configs[f"{phase}_dataloader"], loop, configs[f"{phase}_evaluator"]
        )

    def _check_configured(self, phase: str, method: str) -> None:
        if not {"train": self._train, "val": self._val, "test": self._test}[phase]:
            last = "optim_wrapper" if phase == "train" else f"{phase}_evaluator"
            raise ConfigError(
                f"{method}() was called; the Runner got no {phase}_dataloader, {phase}_cfg and "
                f"{last}. Give these three."
            )
