"""Run a training or an evaluation, from the first hook to the clean-up."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from mm_runner.checkpoint import first_line
from mm_runner.data import pseudo_collate
from mm_runner.errors import ConfigError, RunStopped
from mm_runner.evaluator import CollectPredictions, Evaluator
from mm_runner.hooks import CheckpointHook
from mm_runner.hooks._metrics import refuse_missing_metrics
from mm_runner.loops import EndOfTrainingError, EpochBasedTrainLoop, IterBasedTrainLoop
from mm_runner.model import train_step_of, unwrap_model
from mm_runner.optim import named_schedulers

from ._model import begin_compiling
from ._resume import StartingPoint
from ._summary import log_end, log_start
from ._work_dir import holding_work_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from ._runner import Runner

# Errors about a list where torch, or the model, expects a tensor.
_NOT_LIST = re.compile(r"must be .*[tT]ensor.*not list|got \(list|'list' object has no attribute")


def train(run: Runner) -> nn.Module:
    """Build the parts of a training, load or resume, and train; return the model."""
    run.recipe.check_phase("train", "train()")
    train_step_of(run.model)
    start = run.starting_point
    is_fresh = not (start.resume or run.owns_checkpoints)
    with holding_work_dir(run, is_fresh=is_fresh) as delete_checkpoints:
        run.starting_point.find(run)
        run.recipe.build_training(run)
        run.is_training = True
        try:
            with _cleaning_up(run), run.interruption.listening(run), explaining_lists(run):
                _train(run, delete_checkpoints)
        except RunStopped:
            if run.interruption.saved is not None:
                run.starting_point = StartingPoint(str(run.interruption.saved), resume=True)
            raise
    model: nn.Module = run.model
    return model


def _train(run: Runner, delete_checkpoints: Callable[[], None]) -> None:
    run.call_hook("before_run")
    run.load_or_resume()
    delete_checkpoints()
    run.owns_checkpoints = True
    run.optim_wrapper.initialize_count_status(run.model, run.iter, run.max_iters)
    begin_compiling(run)
    log_start(run)
    _check_metrics(run)
    began_s, first_iter = time.perf_counter(), run.iter
    try:
        run.train_loop.run()
    except EndOfTrainingError:  # through a loop that is none of ours
        run.call_hook("after_train")
    log_end(run, began_s, first_iter)
    run.call_hook("after_run")


def _check_metrics(run: Runner) -> None:
    """Refuse metrics that no validation reports, and warn about settings that need a validation.

    Raises:
        ConfigError: If a metric is asked for that no validation reports.
    """
    schedulers = list(chain.from_iterable(named_schedulers(run.param_schedulers).values()))
    evaluator = getattr(run.val_loop, "evaluator", None)
    reported = evaluator.reported_names() if isinstance(evaluator, Evaluator) else None
    if reported is not None:
        refuse_missing_metrics(reported, run.hooks, schedulers)
    # A custom loop may validate by itself; trials leave validations out.
    is_ours = type(run.train_loop) in (EpochBasedTrainLoop, IterBasedTrainLoop)
    if run.val_loop is not None or not is_ours or not run.interruption.saves:
        return
    waiting = [f"{one.where}.monitor" for one in schedulers if one.need_val_args]
    waiting += [
        f"{type(hook).__name__}.save_best"
        for hook in run.hooks
        if isinstance(hook, CheckpointHook) and hook.save_best
    ]
    for setting in waiting:
        run.logger.warning(
            f"{setting} was given and has no effect: the run has no validation to take a metric "
            "from. Give val_dataloader, val_cfg and val_evaluator, or leave it out."
        )


def evaluate(run: Runner, phase: str) -> dict[str, float]:
    """Run the loop of ``phase`` once, and return the metrics."""
    loop: Any = getattr(run, f"{phase}_loop")
    if loop is None:
        run.recipe.check_phase(phase, f"{phase}()")
    return _evaluate(run, loop)


def _evaluate(run: Runner, loop: Any) -> dict[str, float]:
    run.call_hook("before_run")
    run.load_or_resume()
    try:
        with explaining_lists(run):
            metrics: dict[str, float] = loop.run()
    finally:
        run.console.stop_progress()
    run.call_hook("after_run")
    return metrics


def predict(run: Runner, loader: Any) -> Any:
    """Predict every sample of ``loader``; return the predictions on the main process."""
    collected = CollectPredictions()
    loop = run.recipe.prediction_loop(run, loader, Evaluator(collected))
    parts = vars(run)
    own = parts.get("test_loop")
    parts["test_loop"] = loop  # hooks read it
    try:
        _evaluate(run, loop)
    finally:
        loop.close()
        parts.pop("test_loop")
        parts.update({} if own is None else {"test_loop": own})
    return collected.predictions


@contextmanager
def _cleaning_up(run: Runner) -> Iterator[None]:
    """Clean up every hook and loop after the block, even if some of them fail.

    Raises:
        Exception: The first that cleaning up raised, unless the block raised one. The log has all.
    """
    acts: list[Callable[[], object]] = []
    failures: list[Exception] = []
    status = "killed"  # by what is no error: a stop that has saved, Ctrl-C
    try:
        yield
        status = "finished"
    except Exception as error:
        status = "failed"
        acts += [partial(hook.on_exception, run, error) for hook in run.hooks]
        raise
    finally:
        run.is_training = False
        closed: list[Any] = [
            vars(run).get("train_loop"),
            vars(run).get("val_loop"),
            run.shard_writer,
        ]
        acts += [partial(hook.clean_up, run) for hook in run.hooks]
        acts += [one.close for one in closed if hasattr(one, "close")]
        acts.append(partial(run.logs.give, "end", status))
        acts.append(run.console.stop_progress)  # last: the bar must not draw over a traceback
        for act in acts:
            try:
                act()
            except Exception as error:  # a hook of the user's may raise anything
                failures.append(error)
                run.logger.exception("Cleaning up after the training failed; the rest was done.")
        if status == "finished" and failures:
            raise failures[0]


@contextmanager
def explaining_lists(run: Runner) -> Iterator[None]:
    """Name ``collate_fn`` in the error of a model that cannot take lists.

    Samples are not stacked by default, as with MMEngine, whose models take lists; the layers of
    other modules fail with an error that knows nothing of the loader.

    Raises:
        ConfigError: In place of such an error.
    """
    try:
        yield
    except (AttributeError, TypeError) as error:
        found = {phase: vars(run).get(f"{phase}_loop") for phase in ("train", "val", "test")}
        phases = [
            phase
            for phase, loop in found.items()
            if getattr(getattr(loop, "dataloader", None), "collate_fn", None) is pseudo_collate
        ]
        if not (phases and _NOT_LIST.search(str(error))):
            raise
        raise ConfigError(
            f"{phases[0]}_dataloader.collate_fn: {type(unwrap_model(run.model)).__name__} "
            f"failed with {type(error).__name__}: {first_line(error)} The batch was made by "
            "pseudo_collate, the default, which stacks nothing. Set collate_fn='default_collate' "
            "for tensors with a row per sample; or let the model, or its data_preprocessor, take "
            "lists."
        ) from error
