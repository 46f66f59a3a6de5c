"""The configuration of a run, and the order in which its parts are built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import mm_dist
from mm_runner import evaluator as evaluators
from mm_runner.checkpoint import rng_state, set_rng_state
from mm_runner.config import ConfigDict
from mm_runner.data import DataSettings, SeekableBatchSampler, build_dataloader, is_shuffled
from mm_runner.errors import ConfigError
from mm_runner.hooks import FreezeHook
from mm_runner.loops import TestLoop
from mm_runner.model import eval_step_of, uncalled_step, unwrap_model
from mm_runner.registry import (
    LOOPS,
    build_from_cfg,
    derives_from_library,
    init_default_scope,
)
from mm_runner.reporting import writer_configs
from mm_runner.validation import check_train_loop

from ._checks import HOMES, check_run
from ._logs import plain_config
from ._model import as_trainable, compile_and_wrap, use_channels_last, with_preprocessor
from ._optimizers import check_schedules, check_wrapper_of_run

if TYPE_CHECKING:
    from ._runner import Runner


class Recipe:
    """The configuration of a run, checked, and the building of its parts.

    Parts are built by the ``build_*`` methods of the Runner, which a subclass may override.

    Attributes:
        cfg: The full configuration, copied.
        given: All that is configured.
        resolved: The same in primitives.
        writers: Configs of the writers of scalars, by path.

    Raises:
        ConfigError: If something is wrong; the message names its path.
        ComponentNotFoundError: If a ``type`` names nothing.
    """

    def __init__(self, arguments: Mapping[str, Any], cfg: Any, runner: type[Runner]) -> None:
        init_default_scope(arguments["default_scope"])
        self._phases = check_run(arguments, cfg, runner)
        self.cfg = ConfigDict(cfg or {})
        self._schedules = arguments["param_scheduler"]
        self._auto_scale_lr = arguments["auto_scale_lr"]
        self._model = with_preprocessor(arguments["model"], arguments["data_preprocessor"])
        given = {name: value for name, value in arguments.items() if value is not None}
        # Variables of a Python file, written to another file, would no longer show as such.
        self.given = {**given, **{k: v for k, v in self.cfg.items() if k not in HOMES}}
        self.resolved: dict[str, Any] = plain_config(self.given)
        self.writers = writer_configs(arguments["visualizer"], self.cfg.get("log_writers"))
        self._trained: Any = None  # the optimizer wrapper of the last training

    def check_phase(self, phase: str, asked: str, of: type[Exception] = ConfigError) -> None:
        """Raise an error of type ``of`` about ``asked`` unless ``phase`` is configured."""
        if not self._phases[phase]:
            last = "optim_wrapper" if phase == "train" else f"{phase}_evaluator"
            raise of(
                f"{asked}: the Runner has no {phase} loop, as it got no {phase}_dataloader, "
                f"{phase}_cfg and {last}. Give these three."
            )

    def build_model(self, run: Runner) -> tuple[Any, Any]:
        """Build, initialize, compile and wrap the model; return it and its compile handle."""
        model = built_by(run, "build_model", self._model)
        model = as_trainable(model, self.cfg.get("loss"), run.logger.warning)
        init_weights: Any = getattr(model, "init_weights", None)
        if self._phases["train"] and init_weights is not None:
            run.logger.info(f"Weights are initialized by {type(model).__name__}.init_weights().")
            init_weights()
        for hook in run.hooks:
            if isinstance(hook, FreezeHook) and hook.num_epochs is None:  # before it is wrapped
                hook.freeze(model)
        if self.cfg.get("channels_last"):
            use_channels_last(model)
        wrapper_cfg = self.cfg.get("model_wrapper_cfg")
        wrapped, handle = compile_and_wrap(
            run, model, lambda bare: built_by(run, "wrap_model", wrapper_cfg, bare)
        )
        bare_model = unwrap_model(wrapped)
        is_wrapped = self._phases["train"] and bare_model is not wrapped
        warning = uncalled_step(bare_model, type(wrapped)) if is_wrapped else None
        if warning is not None:
            run.logger.warning(warning)
        return wrapped, handle

    def build_loop(self, run: Runner, phase: str) -> Any:
        """Build the loop of ``phase`` with its data, ``None`` if it is not configured.

        Random numbers that are drawn meanwhile are not taken from those of the run, so that a run
        does not depend on when its loops are built.
        """
        configured = self._phases[phase]
        if not configured:
            return None
        if phase != "train":
            eval_step_of(run.model, f"{phase}_step")
        state = rng_state(run.device)
        try:
            return built_by(run, f"build_{phase}_loop", configured[f"{phase}_cfg"])
        finally:
            set_rng_state(state, run.device)

    def loop_of(self, run: Runner, phase: str, cfg: Any) -> Any:
        """Build the loop of ``phase`` from its config; a loop is returned as it is."""
        if hasattr(cfg, "run"):
            return cfg
        self.check_phase(phase, f"build_{phase}_loop()")
        arguments, configured = dict(cfg or {}), self._phases[phase]
        kind = f"{phase.title()}Loop"
        if phase == "train":
            check_train_loop(cfg, "train_cfg")
            is_by_iter = arguments.pop("by_epoch", None) is False
            kind = "IterBasedTrainLoop" if is_by_iter else "EpochBasedTrainLoop"
        where = f"{phase}_dataloader"
        loader = self._loader_of(run, configured[where], where)
        given = {"type": kind, "runner": run, "dataloader": loader}
        if phase != "train":
            where = f"{phase}_evaluator"
            named = LOOPS.resolve(arguments.get("type", kind))
            # A loop derived from MMEngine's builds the evaluator itself.
            if derives_from_library(named):
                given["evaluator"] = configured[where]
            else:
                with _building(_PartOfRun(where)):
                    given["evaluator"] = built_by(run, "build_evaluator", configured[where])
        return build_from_cfg(arguments, LOOPS, given, where=f"{phase}_cfg")

    def _loader_of(self, run: Runner, loader: Any, where: str) -> Any:
        settings = DataSettings(
            run.seed, run.loader_generator, run.data_rank, run.num_data_ranks, run.device
        )
        options = {"seed": run.seed, "diff_rank_seed": run.diff_rank_seed}
        with _building(_PartOfRun(where, settings)):
            built = built_by(run, "build_dataloader", loader, **options)
        if isinstance(getattr(built, "batch_sampler", None), SeekableBatchSampler):
            return built
        # An override built it: treat it as a DataLoader that was passed in.
        return build_dataloader(built, settings, shuffle=where == "train_dataloader", where=where)

    def prediction_loop(self, run: Runner, loader: Any, evaluator: Any) -> TestLoop:
        """Build a loop that predicts every sample of ``loader`` in order, as a test would.

        Raises:
            ConfigError: If there is no loader, or it shuffles or leaves out samples.
        """
        where = next((name for name, one in self.given.items() if one is loader), "loader")
        if loader is None:
            assigned = vars(run).get("test_loop")
            where = "test_dataloader"
            loader = self.given.get(where) if assigned is None else assigned.dataloader
        if loader is None:
            raise ConfigError(
                "predict(): no loader was given, and the Runner has no test_dataloader. Give "
                "predict() a DataLoader or its config; or the Runner a test_dataloader with "
                "test_evaluator."
            )
        loader = self._loader_of(run, loader, where)
        if is_shuffled(loader):
            raise ConfigError(
                f"{where}: its sampler shuffles, so that predictions could not be told apart. "
                "Predict with a sampler in order: sampler=dict(type='DefaultSampler', "
                "shuffle=False), or DataLoader(..., shuffle=False)."
            )
        parts = (loader, getattr(loader, "batch_sampler", None))
        if any(getattr(one, "drop_last", False) is True for one in parts):
            raise ConfigError(
                f"{where}.drop_last: True was given, which leaves out the last samples; all are "
                "predicted. Set it to False."
            )
        test_cfg = self.given.get("test_cfg")
        has_fp16 = isinstance(test_cfg, Mapping) and bool(test_cfg.get("fp16"))
        return TestLoop(run, loader, evaluator, fp16=has_fp16)

    def build_training(self, run: Runner) -> None:
        """Build the parts of a training, in this order; assigned parts are used as they are."""
        parts, assigned = vars(run), run.assigned_parts
        if self._trained is not None:  # each training builds its parts again
            for name in ("train_loop", "optim_wrapper"):
                if name not in assigned:
                    parts.pop(name, None)
        if not hasattr(run.train_loop, "run"):  # a config that was assigned
            parts["train_loop"] = built_by(run, "build_train_loop", run.train_loop)
        given = self._phases["train"]["optim_wrapper"]
        given = run.optim_wrapper if "optim_wrapper" in assigned else given
        parts["optim_wrapper"] = wrapper = built_by(run, "build_optim_wrapper", given)
        check_wrapper_of_run(run.model, wrapper)
        if wrapper is not self._trained:
            run.scale_lr(wrapper, self._auto_scale_lr)
        self._trained = wrapper
        given = run.param_schedulers if "param_schedulers" in assigned else self._schedules
        parts["param_schedulers"] = built_by(run, "build_param_scheduler", given)
        check_schedules(wrapper, run.param_schedulers)
        _ = run.val_loop  # built now, so that its mistakes show before the first step


class _PartOfRun(NamedTuple):
    """Context of a ``build_*`` call for a run, beyond MMEngine's arguments."""

    where: str  # path of the config
    settings: DataSettings | None = None  # of a loader


_part: ContextVar[_PartOfRun | None] = ContextVar("mm_runner_part_of_run", default=None)


def built_by(run: Runner, method: str, *arguments: Any, **options: Any) -> Any:
    """Call a ``build_*`` method of the Runner, which a subclass may override."""
    built = getattr(run, method)(*arguments, **options)
    if built is None:
        raise ConfigError(f"{type(run).__name__}.{method}() returned None; return what it builds.")
    return built


def build_loader(
    dataloader: Any,
    seed: int | None = None,
    diff_rank_seed: bool = False,  # noqa: ARG001, FBT001, FBT002 - MMEngine's signature
) -> Any:
    """Build a dataloader from its config, with a share of the samples for each process.

    The loops of a run get their loaders by this; an override that calls it gets the same.

    Args:
        dataloader: A ``DataLoader`` or its config; without a sampler, samples come in order, but
            for the training of a run.
        seed: Of samplers and workers; ``None`` draws one, alike on all processes, or in a run is
            its own.
        diff_rank_seed: Accepted for MMEngine's signature; workers of each process draw by seeds of
            their own anyway.

    Raises:
        ConfigError: If a key is missing, unknown or of the wrong type.
    """
    where, settings = _part.get() or _PartOfRun("dataloader")
    if settings is None:
        seed = mm_dist.sync_random_seed() if seed is None else seed
        generator = torch.Generator().manual_seed(seed)
        settings = DataSettings(seed, generator, *mm_dist.get_dist_info())
    elif seed is not None:
        settings = settings._replace(seed=seed)
    with _building(None):  # a dataset may build a loader of its own
        shuffle = where == "train_dataloader"
        return build_dataloader(dataloader, settings, shuffle=shuffle, where=where)


def build_evaluator_of(evaluator: Any) -> Any:
    """Build an evaluator: from a metric, its config, a list of these, or ``dict(metrics=...)``.

    Raises:
        ComponentNotFoundError: If a ``type`` names nothing.
        ConfigError: If it is nothing of these, or arguments do not fit.
    """
    part = _part.get()
    return evaluators.build_evaluator(evaluator, where=part.where if part else "evaluator")


@contextmanager
def _building(part: _PartOfRun | None) -> Iterator[None]:
    token = _part.set(part)
    try:
        yield
    finally:
        _part.reset(token)
