"""Proof on a user's configuration that a resumed run takes the same steps."""

from __future__ import annotations

import copy
import gc
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import clean_name, load_checkpoint_file, rng_state, set_rng_state
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.model import unwrap_model
from mm_runner.optim import named_wrappers
from mm_runner.runner import Runner
from mm_runner.runner._checks import without_variables
from mm_runner.runner._environment import (
    fix_cublas_workspace,
    seed_everything,
    set_up_process,
)

from ._fingerprint import fingerprint
from ._run_comparison import (
    ResumeDifference,
    ResumeReport,
    StepRecord,
    compare_states,
    compare_steps,
    explain,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mm_runner.run_view import RunView

__all__ = ["verify_resume"]

# What a run of a few steps is not to do.
_LEFT_OUT = (
    "experiment_name",
    "test_cfg",
    "test_dataloader",
    "test_evaluator",
    "val_cfg",
    "val_dataloader",
    "val_evaluator",
    "visualizer",
)


_AT_MOST, _BEYOND = 5, 5


def verify_resume(
    cfg: Mapping[str, Any],
    *,
    at_step: int | None = None,
    steps: int | None = None,
    work_dir: str | Path | None = None,
) -> ResumeReport:
    """Train some steps, stop, resume, and compare with the same steps without a stop.

    Both runs take place in this process, or in all processes of a distributed run, each of which
    must call this. Between them the generators are put elsewhere, as in a new process. Validation,
    test and the checkpoints that ``cfg`` asks for are left out. If the runs differ, a third one
    tells whether two runs without a stop differ as well.

    Args:
        cfg: A full configuration, as for ``Runner.from_cfg``. It is copied, with what is in it.
        at_step: Stop after this step, or after the first optimizer step from there on if gradients
            are accumulated. By default after at most five steps, in the middle of an epoch.
        steps: Steps to take in all; by default about five more.
        work_dir: Where the runs write; by default a temporary directory, removed afterwards.

    Returns:
        What was found; ``print`` it.

    Raises:
        ConfigError: If the configuration does not fit, cannot be copied, or ends its training
            before the last step to compare.

    Example:
        >>> print(verify_resume(cfg))  # doctest: +SKIP
        Resuming is exact: stopped after step 5 and resumed, the run took the same 5 steps ...
    """
    if at_step is not None and at_step < 1:
        raise ConfigError(
            f"verify_resume: at_step={at_step!r} was given; it is the number of the step to stop "
            "after, from 1."
        )
    before = rng_state(torch.device("cpu"))
    fix_cublas_workspace(cfg.get("randomness"))
    set_up_process(cfg.get("launcher") or "auto", cfg.get("env_cfg"))
    directory = _directory(work_dir)
    try:
        return _verify(cfg, directory, at_step, steps)
    finally:
        set_rng_state(before, torch.device("cpu"))
        if work_dir is None:
            mm_dist.barrier()
            if mm_dist.is_main_process():
                shutil.rmtree(directory, ignore_errors=True)


def _verify(
    cfg: Mapping[str, Any], directory: Path, at_step: int | None, steps: int | None
) -> ResumeReport:
    whole = Recorder(directory / "whole", at_step, steps)
    _record(cfg, whole)
    stop = whole.directory / "stop.pth"
    resumed = Recorder(directory / "resumed", 0, whole.steps)
    _record(cfg, resumed, load_from=str(stop), resume=True)
    differences = _compare(whole, resumed)
    assert whole.at_step is not None
    assert whole.steps is not None
    explanation = ""
    if differences:
        again = Recorder(directory / "again", whole.at_step, whole.steps)
        seed = {**(cfg.get("randomness") or {}), "seed": whole.seed}
        _record(cfg, again, randomness=seed)
        explanation = explain(differences, _compare(whole, again))
    return ResumeReport(
        equal=not differences,
        at_step=whole.at_step,
        steps=whole.steps,
        steps_compared=whole.steps - whole.at_step,
        differences=tuple(differences),
        explanation=explanation,
    )


def _directory(work_dir: str | Path | None) -> Path:
    if work_dir is not None:
        return Path(work_dir).absolute()
    return run_on_main(lambda: Path(tempfile.mkdtemp(prefix="mm_runner-verify-resume-")))


def _record(cfg: Mapping[str, Any], recorder: Recorder, **changes: Any) -> None:
    """Train as ``cfg`` says, in a process that knows nothing of a run before."""
    _scramble_generators()
    runner = Runner.from_cfg({**_short(cfg, recorder.directory), **changes})
    runner.register_hook(recorder)
    runner.interruption.saves = False
    try:
        runner.train()
        raise ConfigError(
            f"verify_resume: training ended after step {runner.iter} by itself, before step "
            f"{recorder.steps}, the last one to compare: a hook (TimeLimitHook, EarlyStoppingHook) "
            "or the loop ends it. Leave that hook out, or give steps= a smaller number."
        )
    except EndOfRecordError:
        pass
    finally:
        del runner
        gc.collect()  # workers, and wrappers of the process group, before the next run's


def _short(cfg: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return a copy of ``cfg`` for a run that only trains."""
    try:
        # All at once: what two entries share, such as a model and its optimizer, stays shared.
        copied = copy.deepcopy(dict(cfg))
    except Exception as error:
        raise ConfigError(
            f"verify_resume: the configuration is needed three times, and cannot be copied: "
            f"{error}. Give dicts with 'type' instead of objects."
        ) from error
    whole = without_variables(copied)
    kept = {name: value for name, value in whole.items() if name not in _LEFT_OUT}
    hooks = {**(kept.get("default_hooks") or {}), "checkpoint": None, "logger": None}
    return {
        **kept,
        "work_dir": str(directory),
        "default_hooks": hooks,
        "log_level": "WARNING",
        "crash_bundle": False,
        "resume_data": True,
    }


def _scramble_generators() -> None:
    """Let the generators be where no run would leave them."""
    seed_everything(random.SystemRandom().getrandbits(32))


def _compare(whole: Recorder, other: Recorder) -> list[ResumeDifference]:
    """Return the differences of all processes' steps, else those of the state at the end."""
    own = compare_steps(whole.records, other.records, mm_dist.get_rank())
    of_all = [one for found in mm_dist.all_gather_object(own) for one in found]
    if of_all:
        first = min(one.step or 0 for one in of_all)
        return [one for one in of_all if one.step == first]
    return run_on_main(
        lambda: compare_states(
            load_checkpoint_file(whole.directory / "end.pth"),
            load_checkpoint_file(other.directory / "end.pth"),
            whole.names,
        )
    )


class EndOfRecordError(Exception):
    """Ends a run after the last step that is compared."""


class Recorder(Hook):
    """Records a run; saves it at one step, and ends it at another.

    Neither is done while gradients are accumulated, which are in no checkpoint, but after the next
    optimizer step.

    Args:
        directory: Where to save ``stop.pth`` and ``end.pth``.
        at_step: When to save the former, ``None`` to choose a step within an epoch; 0 never.
        steps: When to save the latter and end; ``None`` for some steps later.
    """

    priority = "LOWEST"

    def __init__(self, directory: Path, at_step: int | None, steps: int | None) -> None:
        self.directory = directory
        self.at_step, self.steps = at_step, steps
        self.seed: int | None = None
        self.records: dict[int, StepRecord] = {}
        # Of the parameters, in the order of each optimizer.
        self.names: dict[str, list[str]] = {}
        self._is_saved = at_step == 0

    @override
    def before_train(self, runner: RunView) -> None:
        self.names, self.seed = _parameter_names(runner), runner.seed
        window = max(
            getattr(one, "accumulative_counts", 1)
            for one in named_wrappers(runner.optim_wrapper).values()
        )
        if self.at_step is None:
            length = getattr(getattr(runner.train_loop, "batches", None), "length", None)
            within = _AT_MOST if length is None else min(max(length // 2, 1), _AT_MOST)
            self.at_step = -(-within // window) * window
        if self.steps is None:
            steps = self.at_step + max(_BEYOND, window)
            self.steps = min(-(-steps // window) * window, runner.max_iters)
        if not self._is_saved and not 0 < self.at_step < self.steps <= runner.max_iters:
            raise ConfigError(
                f"verify_resume: a stop after step {self.at_step} and an end after step "
                f"{self.steps} were asked for; the training has {runner.max_iters} steps. Let "
                "0 < at_step < steps, and train_cfg allow that many."
            )

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        generators = rng_state(runner.device)
        self.records[runner.iter + 1] = StepRecord(
            fingerprint(data_batch),
            {name: fingerprint(state) for name, state in generators.items()},
            [float(group["lr"]) for group in _groups(runner)],
            {},
        )

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        step = runner.iter + 1
        if isinstance(outputs, dict):
            self.records[step].outputs.update(
                {name: _number(value) for name, value in outputs.items()}
            )
        if runner.holds_gradients:
            return
        assert self.at_step is not None
        assert self.steps is not None
        if not self._is_saved and step >= self.at_step:
            self._is_saved, self.at_step = True, step
            runner.save_checkpoint(self.directory, "stop.pth", mark_as_latest=False)
        elif step >= self.steps:
            self.steps = step
            runner.save_checkpoint(self.directory, "end.pth", mark_as_latest=False)
            raise EndOfRecordError


def _parameter_names(runner: RunView) -> dict[str, list[str]]:
    names = {id(one): name for name, one in unwrap_model(runner.model).named_parameters()}
    return {
        wrapper_name: [
            clean_name(names.get(id(parameter), "?"))
            for group in wrapper.param_groups
            for parameter in group["params"]
        ]
        for wrapper_name, wrapper in named_wrappers(runner.optim_wrapper).items()
    }


def _groups(runner: RunView) -> list[Any]:
    wrappers = named_wrappers(runner.optim_wrapper).values()
    return [group for wrapper in wrappers for group in wrapper.param_groups]


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else fingerprint(value)
    return value if isinstance(value, (bool, int, float, str)) else fingerprint(value)
