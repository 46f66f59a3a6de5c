"""A validation of a few batches before training, of which nothing remains."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from mm_runner.checkpoint import rng_state, set_rng_state
from mm_runner.evaluator import DumpResults
from mm_runner.hooks._metrics_asked import refuse_missing_metrics
from mm_runner.optim import named_schedulers

from ._evaluation import RehearsalStopped, ValLoop

if TYPE_CHECKING:
    from mm_runner.evaluator import Evaluator
    from mm_runner.run_view import RunView

__all__ = ["rehearse_validation"]


def rehearse_validation(runner: RunView, num_batches: int) -> None:
    """Validate the first batches, so that a mistake in what validates shows at once.

    Hooks are not called, and metrics are computed by copies and dropped. Random numbers, the modes
    and buffers of the model, and the loader are then as if it had not been. A run that is asked to
    stop meanwhile passes over the rest.

    Args:
        runner: About to train. Without a validation loop a warning is all there is.
        num_batches: Of each process.
    """
    loop = runner.val_loop
    if not isinstance(loop, ValLoop):
        runner.logger.warning(
            f"train_cfg.sanity_val_batches: {num_batches} was given, and the run has "
            f"{'no validation' if loop is None else 'a validation loop of its own'}: nothing is "
            "validated before training."
        )
        return
    try:
        with ExitStack() as stack:
            for untouched in (_numbers, _model, _loop, _hooks):
                stack.enter_context(untouched(runner))
            stack.enter_context(_running_eagerly(runner))
            loop.limit = num_batches
            metrics = loop.run()
    except RehearsalStopped:
        return
    except Exception:
        runner.logger.error(  # noqa: TRY400 - the error is raised
            "The validation before training (train_cfg.sanity_val_batches) failed."
        )
        raise
    schedulers = chain.from_iterable(named_schedulers(runner.param_schedulers).values())
    refuse_missing_metrics(metrics, runner.hooks, schedulers, is_all=False)
    runner.logger.info(
        f"The first {num_batches} batches could be validated (train_cfg.sanity_val_batches): "
        f"{', '.join(metrics) or 'no metric'}."
    )


@contextmanager
def _numbers(runner: RunView) -> Iterator[None]:
    """Put all generators back, also those that the user gave the loader."""
    loader = runner.val_loop.dataloader
    owners = (
        loader,
        *(getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")),
    )
    found = [runner.loader_generator, *(getattr(one, "generator", None) for one in owners)]
    generators = [one for one in found if isinstance(one, torch.Generator)]
    state, own = rng_state(runner.device), [one.get_state() for one in generators]
    try:
        yield
    finally:
        set_rng_state(state, runner.device)
        for generator, before in zip(generators, own, strict=True):
            generator.set_state(before)


@contextmanager
def _model(runner: RunView) -> Iterator[None]:
    """Put buffers back that a validation changes, such as counters; modes are the loop's matter."""
    buffers = {name: one.detach().clone() for name, one in runner.model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in runner.model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


@contextmanager
def _loop(runner: RunView) -> Iterator[None]:
    loop = runner.val_loop
    limit, evaluator = loop.limit, loop.evaluator
    loop.evaluator, loop.is_rehearsal = _copied(evaluator), True
    try:
        with _keeping_no_predictions(loop.evaluator):
            yield
    finally:
        loop.limit, loop.evaluator, loop.is_rehearsal = limit, evaluator, False
        evaluator.reset()
        loop.close()  # workers remember, too


@contextmanager
def _hooks(runner: RunView) -> Iterator[None]:
    """Let no hook act, and no stop be settled: that waits for the end of the first step."""
    own: dict[str, Any] = vars(runner)
    names = ("call_hook", "is_training")
    before: dict[str, Any] = {name: own[name] for name in names if name in own}
    # That of a subclass may do more than call them.
    own.update(call_hook=lambda *_, **__: None, is_training=False)
    try:
        yield
    finally:
        del own["call_hook"]
        own.update(before)


def _copied(evaluator: Evaluator) -> Evaluator:
    try:
        return copy.deepcopy(evaluator)
    except Exception:  # noqa: BLE001 - a metric may hold anything, such as an open file
        return evaluator


@contextmanager
def _keeping_no_predictions(evaluator: Any) -> Iterator[None]:
    """Leave out the metrics of an evaluator that write files; one of the user's own has others."""
    metrics = getattr(evaluator, "metrics", None)
    if not isinstance(metrics, list):
        yield
        return
    before = list(metrics)
    metrics[:] = [one for one in before if not isinstance(one, DumpResults)]
    try:
        yield
    finally:
        metrics[:] = before


def _running_eagerly(runner: RunView) -> AbstractContextManager[Any]:
    """Keep what is compiled as it is: shapes seen before training would change how it is."""
    set_stance = getattr(getattr(torch, "compiler", None), "set_stance", None)
    if set_stance is None or not runner.compile_handle.enabled:  # before torch 2.6 there is none
        return nullcontext()
    stance: AbstractContextManager[Any] = set_stance("force_eager")
    return stance
