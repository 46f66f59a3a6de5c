"""Comparison of a resumed run with one that was not stopped."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from typing_extensions import override

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import clean_name, load_checkpoint_file, rng_state
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.model import unwrap_model
from mm_runner.optim import named_wrappers
from mm_runner.runner._environment import seed_everything

from ._fingerprint import fingerprint
from ._trial import TRAINING_ONLY, EndOfTrialError, copied_config, train_with, trial_directory

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["ResumeDifference", "ResumeReport", "verify_resume"]

_MOST_LINES = 12
# Steps before the stop, and after it.
_NUM_STEPS = 5
# Entries of a checkpoint that may differ between two runs of the same steps.
_OWN = ("meta", "checkpoint_hook")
_CAUSES = {
    "data": "The resumed run trains on other batches: the order of the data, or what workers draw "
    "for augmentation, does not continue where it was.",
    "random numbers": "The batches are the same, and the random numbers are not: something draws "
    "some outside the steps in one of the runs only.",
    "learning rates": "Batches and random numbers are the same, and the learning rates are not: a "
    "hook or a schedule does not keep its state. Give the hook state_dict and load_state_dict.",
    "outputs": "The same batch, random numbers and learning rates give another output: the forward "
    "pass, or the step before it, depends on something that is in no checkpoint, such as a plain "
    "attribute of the model or a buffer with persistent=False.",
    "state": "The steps gave the same outputs, and what later steps depend on differs at the end.",
}
_NOT_REPRODUCIBLE = (
    "But two runs without a stop differ as well (see {}: {}), so this says nothing about resuming: "
    "make the training reproducible first, with randomness=dict(seed=0, deterministic=True), and "
    "without random numbers of other generators than Python's, NumPy's global one, and torch's."
)


class ResumeDifference(NamedTuple):
    """A difference between the two runs.

    ``what`` is ``"data"``, ``"random numbers"``, ``"learning rates"`` or ``"outputs"`` of a step,
    or ``"state"`` at the end, with ``step=None``; ``name`` is the generator, output or entry of the
    checkpoint, such as ``"optimizer.layers.0.weight.momentum_buffer"``.
    """

    what: str
    name: str
    detail: str
    step: int | None = None
    rank: int = 0

    @override
    def __str__(self) -> str:
        where = "at the end" if self.step is None else f"step {self.step}"
        rank = f"rank {self.rank}, " if self.rank else ""
        return f"{rank}{where}: {self.what}: {self.name}: {self.detail}"


class ResumeReport(NamedTuple):
    """Whether a resumed run took the steps of one that was not stopped, bit by bit.

    ``at_step`` is the step after which the run was stopped and resumed, ``steps`` the number of
    steps of both runs. ``differences`` are those of the first step that has any, else those of the
    state at the end; ``explanation`` says what they mean.
    """

    equal: bool
    at_step: int
    steps: int
    differences: tuple[ResumeDifference, ...] = ()
    explanation: str = ""

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
            f"differs from one without a stop. {self.explanation}"
        )
        lines = [head, *(f"  {difference}" for difference in self.differences[:_MOST_LINES])]
        if len(self.differences) > _MOST_LINES:
            lines.append(f"  and {len(self.differences) - _MOST_LINES} more")
        return "\n".join(lines)


def verify_resume(
    cfg: Mapping[str, Any],
    *,
    at_step: int | None = None,
    steps: int | None = None,
    work_dir: str | Path | None = None,
) -> ResumeReport:
    """Train some steps, stop, resume, and compare with the same steps without a stop.

    Both runs take place in this process, or in all processes of a distributed run, each of which
    must call this. Between them the generators are seeded at random, as in a new process.
    Validation, test and the checkpoints that ``cfg`` asks for are left out. If the runs differ, a
    third one shows whether two runs without a stop differ as well.

    Args:
        cfg: A full configuration, as for ``Runner.from_cfg``. It is copied, with what is in it.
        at_step: Stop after this step, or after the first optimizer step from there on if gradients
            are accumulated. By default after at most five steps, in the middle of an epoch.
        steps: Steps to take in all; by default about five more.
        work_dir: Where the runs write; by default a temporary directory, removed afterwards.

    Returns:
        A report; ``print`` it.

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
    with trial_directory(cfg, "verify-resume", work_dir) as (directory, _):
        whole = _Recorder(directory / "whole", at_step, steps)
        _record(cfg, whole)
        resumed = _Recorder(directory / "resumed", 0, whole.steps)
        _record(cfg, resumed, load_from=str(whole.directory / "stop.pth"), resume=True)
        differences = _compare(whole, resumed)
        explanation = ""
        if differences:
            again = _Recorder(directory / "again", whole.at_step, whole.steps)
            seed = {**(cfg.get("randomness") or {}), "seed": whole.seed}
            _record(cfg, again, randomness=seed)
            repeats = _compare(whole, again)
            explanation = _CAUSES[differences[0].what]
            if repeats:
                explanation = _NOT_REPRODUCIBLE.format(repeats[0].what, repeats[0].name)
    assert whole.at_step is not None
    assert whole.steps is not None
    return ResumeReport(
        not differences, whole.at_step, whole.steps, tuple(differences), explanation
    )


def _record(cfg: Mapping[str, Any], recorder: _Recorder, **changes: Any) -> None:
    """Train as ``cfg`` says, without what an earlier run left in the generators."""
    seed_everything(random.SystemRandom().getrandbits(32))
    copied = copied_config(cfg, "verify_resume", TRAINING_ONLY)
    hooks = {**(copied.get("default_hooks") or {}), "checkpoint": None, "logger": None}
    own = {"work_dir": str(recorder.directory), "default_hooks": hooks, "resume_data": True}
    runner = train_with({**copied, **own, **changes}, recorder)
    done = runner.iter
    del runner
    gc.collect()  # workers, and wrappers of the process group, before the next run's
    if not recorder.has_ended:
        raise ConfigError(
            f"verify_resume: training ended after step {done} by itself, before step "
            f"{recorder.steps}, the last one to compare: a hook (TimeLimitHook, EarlyStoppingHook) "
            "or the loop ends it. Leave that hook out, or give steps= a smaller number."
        )


# Of a step, by kind and name: fingerprints of its batch and of the generators before it, learning
# rates and outputs.
_StepRecord = dict[tuple[str, str], Any]


class _Recorder(Hook):
    """Records a run; saves it at one step, and ends it at another.

    Both wait for the next optimizer step while gradients are accumulated.

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
        self.records: dict[int, _StepRecord] = {}
        # Of the parameters, in the order of each optimizer.
        self.names: dict[str, list[str]] = {}
        self.has_ended = False
        self._is_saved = at_step == 0

    @override
    def before_train(self, runner: RunView) -> None:
        wrappers = named_wrappers(runner.optim_wrapper)
        names = {id(one): name for name, one in unwrap_model(runner.model).named_parameters()}
        self.names = {
            name: [clean_name(names.get(id(one), "?")) for one in _parameters(wrapper)]
            for name, wrapper in wrappers.items()
        }
        self.seed = runner.seed
        window = max(getattr(one, "accumulative_counts", 1) for one in wrappers.values())
        if self.at_step is None:
            length = getattr(getattr(runner.train_loop, "batches", None), "length", None)
            within = _NUM_STEPS if length is None else min(max(length // 2, 1), _NUM_STEPS)
            self.at_step = -(-within // window) * window
        if self.steps is None:
            steps = self.at_step + max(_NUM_STEPS, window)
            self.steps = min(-(-steps // window) * window, runner.max_iters)
        if not self._is_saved and not 0 < self.at_step < self.steps <= runner.max_iters:
            raise ConfigError(
                f"verify_resume: a stop after step {self.at_step} and an end after step "
                f"{self.steps} were asked for; the training has {runner.max_iters} steps. Let "
                "0 < at_step < steps, and train_cfg allow that many."
            )

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        wrappers = named_wrappers(runner.optim_wrapper).values()
        rates = [float(group["lr"]) for one in wrappers for group in one.param_groups]
        self.records[runner.iter + 1] = {
            ("data", "the batch"): fingerprint(data_batch),
            **{
                ("random numbers", name): fingerprint(state)
                for name, state in rng_state(runner.device).items()
            },
            ("learning rates", "lr"): rates,
        }

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        step = runner.iter + 1
        for name, value in outputs.items() if isinstance(outputs, dict) else ():
            self.records[step]["outputs", name] = _number(value)
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


def _parameters(wrapper: Any) -> list[Tensor]:
    return [one for group in wrapper.param_groups for one in group["params"]]


def _number(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    return value if isinstance(value, (bool, int, float, str)) else fingerprint(value)


def _compare(whole: _Recorder, other: _Recorder) -> list[ResumeDifference]:
    """Return the differences of the first step that has any on a process, else at the end."""
    rank, own = mm_dist.get_rank(), list[ResumeDifference]()
    for step in sorted(whole.records.keys() & other.records.keys()):
        if not own:
            found = _walk(whole.records[step], other.records[step], ())
            own = [
                ResumeDifference(what, name, detail, step, rank)
                for ((what, name), *_), detail in found
            ]
    of_all = [one for found in mm_dist.all_gather_object(own) for one in found]
    if of_all:
        first = min(one.step or 0 for one in of_all)
        return [one for one in of_all if one.step == first]

    def compare_ends() -> list[ResumeDifference]:
        one, two = (load_checkpoint_file(run.directory / "end.pth") for run in (whole, other))
        return [
            ResumeDifference("state", _readable(path, whole.names), detail)
            for path, detail in _walk(_comparable(one), _comparable(two), ())
        ]

    return run_on_main(compare_ends)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)


def _comparable(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in checkpoint.items() if name.partition("#")[0] not in _OWN}
    windows = kept.get("message_hub")
    if isinstance(windows, list):  # the duration of steps is no state
        kept["message_hub"] = [
            {name: window for name, window in one.items() if not name.endswith("time")}
            for one in windows
        ]
    return kept


def _walk(whole: Any, resumed: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(whole, (list, tuple)) and isinstance(resumed, (list, tuple)):
        whole, resumed = dict(enumerate(whole)), dict(enumerate(resumed))
    if isinstance(whole, Mapping) and isinstance(resumed, Mapping):
        for key in [*whole, *(key for key in resumed if key not in whole)]:
            if key not in whole or key not in resumed:
                run = "resumed run" if key in whole else "run without a stop"
                yield (*path, key), f"the {run} has none"
            else:
                yield from _walk(whole[key], resumed[key], (*path, key))
    elif isinstance(whole, Tensor) and isinstance(resumed, Tensor):
        detail = _tensor_difference(whole, resumed)
        if detail:
            yield path, detail
    elif not _is_same(whole, resumed):
        yield path, f"{repr(resumed)[:60]} instead of {repr(whole)[:60]}"


def _tensor_difference(whole: Tensor, resumed: Tensor) -> str:
    if whole.shape != resumed.shape or whole.dtype != resumed.dtype:
        return (
            f"{tuple(resumed.shape)} {resumed.dtype} instead of {tuple(whole.shape)} {whole.dtype}"
        )
    # NaN in the same places is the same.
    differs = (whole != resumed) & ~((whole != whole) & (resumed != resumed))  # noqa: PLR0124
    if not bool(differs.any()):
        return ""
    largest = (whole.double() - resumed.double()).abs().nan_to_num().max().item()
    return f"{int(differs.sum())} of {whole.numel()} values, by {largest:.3g} at most"


def _readable(path: tuple[Any, ...], names: Mapping[str, list[str]]) -> str:
    """Return the path with parameters by name, which an optimizer knows by position only."""
    parts = list(path)
    for wrapper, of_wrapper in names.items():
        before = ["optimizer", *([wrapper] if wrapper else []), "state"]
        position = parts[len(before)] if parts[: len(before)] == before else None
        if isinstance(position, int) and position < len(of_wrapper):
            parts[len(before) - 1 : len(before) + 1] = [of_wrapper[position]]
    return ".".join(map(str, parts))
