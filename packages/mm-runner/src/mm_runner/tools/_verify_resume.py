"""Comparison of a resumed run with one that was not stopped."""

from __future__ import annotations

import copy
import gc
import pickle
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from typing_extensions import override

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import load_checkpoint_file, rng_state
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.optim import named_wrappers
from mm_runner.runner._environment import seed_everything

from ._trial import EndOfTrialError, train_with, training_config, trial_directory

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

_MOST_LINES = 12
# Steps before the stop, and after it.
_NUM_STEPS = 5
# Entries of a checkpoint that may differ between two runs of the same steps: the hub has the
# duration of steps, and the folder of shards, whose tensors are read into place, a random name.
_OWN = ("meta", "message_hub", "checkpoint_hook", "shards")
_ADVICE = (
    "What is in no checkpoint cannot be resumed: plain attributes and buffers with "
    "persistent=False of a model, hooks without state_dict. Two runs without a stop have to be "
    "equal as well: randomness=dict(seed=0, deterministic=True)."
)


class ResumeReport(NamedTuple):
    """Whether a resumed run took the steps of one that was not stopped, bit by bit.

    ``differences`` are lines about the first step that has any, else about the state at the end.
    """

    equal: bool
    at_step: int
    steps: int
    differences: tuple[str, ...]

    @override
    def __str__(self) -> str:
        if self.equal:
            return (
                f"Resuming is exact: stopped after step {self.at_step} and resumed, the run took "
                f"the same {self.steps - self.at_step} steps as without a stop, bit by bit (data, "
                "random numbers, learning rates, losses; and at the end weights, optimizer, "
                "schedules and hooks)."
            )
        head = (
            f"Resuming is not exact: stopped after step {self.at_step} and resumed, the run "
            "differs from one without a stop:"
        )
        return "\n  ".join([head, *self.differences[:_MOST_LINES], _ADVICE])


def verify_resume(
    cfg: Mapping[str, Any],
    *,
    at_step: int | None = None,
    work_dir: str | Path | None = None,
) -> ResumeReport:
    """Train some steps, stop, resume, and compare with the same steps without a stop.

    Both runs take place in this process, or in all processes of a distributed run, each of which
    must call this. Between them the generators are seeded at random, as in a new process.
    Validation, test and the checkpoints that ``cfg`` asks for are left out.

    Args:
        cfg: A full configuration, as for ``Runner.from_cfg``. It is copied, with what is in it.
        at_step: Stop after this step, or after the first optimizer step from there on if gradients
            are accumulated. By default after at most five steps, in the middle of an epoch. About
            five more follow.
        work_dir: Where the runs write; by default a temporary directory, removed afterwards.

    Returns:
        A report; ``print`` it.

    Raises:
        ConfigError: If the configuration does not fit, cannot be copied, or ends its training
            before the last step to compare; or if ``at_step`` is less than 1.

    Example:
        >>> print(verify_resume(cfg))  # doctest: +SKIP
        Resuming is exact: stopped after step 5 and resumed, the run took the same 5 steps ...
    """
    if at_step is not None and at_step < 1:
        raise ConfigError(f"verify_resume: at_step={at_step} was given; the first step is 1.")
    with trial_directory(cfg, "verify-resume", work_dir) as (directory, _):
        whole = _Recorder(directory / "whole", at_step, None)
        _record(cfg, whole)
        resumed = _Recorder(directory / "resumed", 0, whole.steps)
        _record(cfg, resumed, load_from=str(whole.directory / "stop.pth"), resume=True)
        differences = _compare(whole, resumed)
    return ResumeReport(not differences, whole.at_step or 0, whole.steps or 0, tuple(differences))


def _record(cfg: Mapping[str, Any], recorder: _Recorder, **changes: Any) -> None:
    """Train as configured, from generators seeded at random."""
    seed_everything(random.SystemRandom().getrandbits(32))
    copied = training_config(cfg, "verify_resume")
    hooks = {**(copied.get("default_hooks") or {}), "checkpoint": None, "logger": None}
    own = {"work_dir": str(recorder.directory), "default_hooks": hooks}
    done = train_with({**copied, **own, **changes}, recorder).iter
    gc.collect()  # workers, and wrappers of the process group, before the next run's
    if not recorder.has_ended:
        raise ConfigError(
            f"verify_resume: training ended after step {done} by itself, before step "
            f"{recorder.steps}, the last one to compare: a hook (TimeLimitHook, EarlyStoppingHook) "
            "or the loop ends it. Leave that hook out, or stop at an earlier step."
        )


class _Recorder(Hook):
    """Records a run; saves it after ``at_step`` (0: never), and ends it after ``steps``.

    Both wait for the next optimizer step while gradients are accumulated. ``None`` chooses.
    """

    priority = "LOWEST"

    def __init__(self, directory: Path, at_step: int | None, steps: int | None) -> None:
        self.directory, self.at_step, self.steps = directory, at_step, steps
        self.records: dict[int, dict[str, Any]] = {}  # of each step, by kind
        self.has_ended = False
        self._is_saved = at_step == 0

    @override
    def before_train(self, runner: RunView) -> None:
        if self.at_step is None:
            length = getattr(getattr(runner.train_loop, "batches", None), "length", None)
            within = _NUM_STEPS if length is None else max(length // 2, 1)
            self.at_step = min(within, _NUM_STEPS)
        if self.steps is None:
            self.steps = min(self.at_step + _NUM_STEPS, runner.max_iters)
        if not self._is_saved and not 0 < self.at_step < self.steps <= runner.max_iters:
            raise ConfigError(
                f"verify_resume: at_step={self.at_step} was given; the training has "
                f"{runner.max_iters} steps, of which it needs to leave one."
            )

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        step, wrappers = runner.iter + 1, named_wrappers(runner.optim_wrapper).values()
        named = outputs.items() if isinstance(outputs, dict) else ()
        found = {
            "data": data_batch,
            "random numbers": rng_state(runner.device),
            "learning rates": [float(g["lr"]) for one in wrappers for g in one.param_groups],
            "outputs": {k: v.detach() if isinstance(v, Tensor) else v for k, v in named},
        }
        self.records[step] = copy.deepcopy(found)
        if runner.holds_gradients:
            return
        assert self.at_step is not None
        assert self.steps is not None
        if not self._is_saved and step >= self.at_step:
            self._is_saved, self.at_step = True, step
            runner.save_checkpoint(self.directory, "stop.pth", mark_as_latest=False)
        elif step >= self.steps:
            self.steps, self.has_ended = step, True
            runner.save_checkpoint(self.directory, "end.pth", mark_as_latest=False)
            raise EndOfTrialError


def _compare(whole: _Recorder, resumed: _Recorder) -> list[str]:
    """Return lines about the first step that differs on any rank, or about the end."""
    for step in sorted(resumed.records):
        place = f"rank {mm_dist.get_rank()}, step {step}"
        found = list(_walk(whole.records[step], resumed.records[step], place))
        of_all = [line for of_rank in mm_dist.all_gather_object(found) for line in of_rank]
        if of_all:
            return of_all

    def compare_ends() -> list[str]:
        one, two = (load_checkpoint_file(run.directory / "end.pth") for run in (whole, resumed))
        return list(_walk(_comparable(one), _comparable(two), "at the end: state"))

    return run_on_main(compare_ends)


def _comparable(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in checkpoint.items() if name.partition("#")[0] not in _OWN}


def _walk(whole: Any, resumed: Any, path: str) -> Iterator[str]:
    """Yield a line about each difference."""
    if isinstance(whole, (list, tuple)) and isinstance(resumed, (list, tuple)):
        whole, resumed = dict(enumerate(whole)), dict(enumerate(resumed))
    if isinstance(whole, Mapping) and isinstance(resumed, Mapping):
        for key in dict.fromkeys([*whole, *resumed]):
            if key not in whole or key not in resumed:
                run = "resumed run" if key in whole else "run without a stop"
                yield f"{path}: {key}: the {run} has none"
            else:
                yield from _walk(whole[key], resumed[key], f"{path}: {key}")
    elif isinstance(whole, Tensor) and isinstance(resumed, Tensor) and whole.shape == resumed.shape:
        # NaN in the same places is the same.
        differs = (whole != resumed) & ~((whole != whole) & (resumed != resumed))  # noqa: PLR0124
        if bool(differs.any()) or whole.dtype != resumed.dtype:
            largest = (whole.double() - resumed.double()).abs().nan_to_num().max().item()
            count = f"{int(differs.sum())} of {whole.numel()} values"
            yield f"{path}: {resumed.dtype}, {count}, by {largest:.3g} at most"
    elif not _is_same(whole, resumed):
        yield f"{path}: {repr(resumed)[:60]} instead of {repr(whole)[:60]}"


def _is_same(one: Any, other: Any) -> bool:
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except Exception:  # noqa: BLE001 - of an object that cannot be pickled only the class counts
        return type(one) is type(other)
