"""Steps and validations whose effects are undone: rehearsals before training.

torch's DistributedDataParallel puts gradients into buckets by the order of parameters, and rebuilds
them before its second step by the order in which gradients came. The order in which the ranks'
values are added depends on the buckets: beyond two ranks, a resumed run differs in the last bits
from one without a stop, unless its first step is rehearsed, as it is under ``deterministic=True``.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from mm_runner.checkpoint import rng_state, set_rng_state
from mm_runner.evaluator import DumpResults
from mm_runner.hooks._metrics import refuse_missing_metrics
from mm_runner.optim import named_schedulers, named_wrappers

from ._evaluation import RehearsalStopped, ValLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from mm_runner.run_view import RunView

__all__ = ["needs_rehearsal", "rehearse_step", "rehearse_validation"]


def needs_rehearsal(model: nn.Module, world_size: int) -> bool:
    """Return whether ``model`` reduces gradients in another order in its first step."""
    # The sum of two is the same in either order.
    return world_size > 2 and any(
        isinstance(module, DistributedDataParallel) for module in model.modules()
    )


def rehearse_step(
    runner: RunView,
    step: Callable[[Any, Any], Any],
    batch: Any,
    restore: Callable[[], None],
) -> None:
    """Train on ``batch`` until gradients were exchanged, and undo it.

    Args:
        runner: The run.
        step: Takes a batch and the optimizer wrapper.
        batch: Left as it is.
        restore: Gives the model and the optimizers the state that they have now.
    """
    model = runner.model
    generators = rng_state(runner.device)
    buffers = _copied_buffers(model)  # those that are not saved, too
    modes = {module: module.training for module in model.modules()}
    wrappers = named_wrappers(runner.optim_wrapper).values()
    for _ in range(max(getattr(wrapper, "accumulative_counts", 1) for wrapper in wrappers)):
        step(copy.deepcopy(batch), runner.optim_wrapper)
    restore()
    _restore_buffers(model, buffers)
    for module, was_training in modes.items():
        module.training = was_training
    _clear_gradients(model, runner.optim_wrapper)
    runner.optim_wrapper.initialize_count_status(model, runner.iter, runner.max_iters)
    set_rng_state(generators, runner.device)


def _clear_gradients(model: nn.Module, optim_wrapper: Any) -> None:
    optimizers = [wrapper.optimizer for wrapper in named_wrappers(optim_wrapper).values()]
    # torch_npu's have packed the gradients by now, and keep reading these tensors.
    packing = [one for one in optimizers if getattr(one, "is_fused_optimizer", False)]
    packed = {id(p) for one in packing for group in one.param_groups for p in group["params"]}
    for parameter in model.parameters():
        if id(parameter) not in packed:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.zero_()


def rehearse_validation(runner: RunView, num_batches: int) -> None:
    """Validate the first batches, so that a mistake in what validates shows before training.

    Hooks are not called, and metrics are computed by copies and dropped. Random numbers, the modes
    and buffers of the model, and the loader are restored. A run that is asked to stop meanwhile
    skips the rest.

    Args:
        runner: About to train. Without a validation loop it only warns.
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
        with _restoring(runner), _running_eagerly(runner):
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
def _restoring(runner: RunView) -> Iterator[None]:
    """Restore the state that a validation changes: generators, buffers, evaluator and hooks."""
    loop, own = runner.val_loop, vars(runner)
    loader = loop.dataloader
    owners = [getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")]
    found = [
        runner.loader_generator,
        *(getattr(one, "generator", None) for one in (loader, *owners)),
    ]
    generators = [one for one in found if isinstance(one, torch.Generator)]
    states = [one.get_state() for one in generators]
    rng, buffers = rng_state(runner.device), _copied_buffers(runner.model)
    limit, evaluator = loop.limit, loop.evaluator
    with suppress(Exception):  # a metric may hold anything, such as an open file
        loop.evaluator = copy.deepcopy(evaluator)
    # Metrics that write files are left out; an evaluator of the user's own has no such list.
    found_metrics = getattr(loop.evaluator, "metrics", None)
    metrics: list[Any] = found_metrics if isinstance(found_metrics, list) else []
    kept = list(metrics)
    metrics[:] = [one for one in kept if not isinstance(one, DumpResults)]
    # No hook acts, also by a call_hook of a subclass, and no stop is settled before a first step.
    before: dict[str, Any] = {
        name: own[name] for name in ("call_hook", "is_training") if name in own
    }
    own.update(call_hook=lambda *_, **__: None, is_training=False)
    loop.is_rehearsal = True
    try:
        yield
    finally:
        loop.is_rehearsal = False
        del own["call_hook"]
        own.update(before)
        metrics[:] = kept
        loop.limit, loop.evaluator = limit, evaluator
        evaluator.reset()
        loop.close()  # workers remember, too
        _restore_buffers(runner.model, buffers)
        set_rng_state(rng, runner.device)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _running_eagerly(runner: RunView) -> AbstractContextManager[Any]:
    """Leave compiled code alone: shapes seen before training would change how it is compiled."""
    set_stance = getattr(getattr(torch, "compiler", None), "set_stance", None)
    if set_stance is None or not runner.compile_handle.enabled:  # before torch 2.6 there is none
        return nullcontext()
    stance: AbstractContextManager[Any] = set_stance("force_eager")
    return stance


def _copied_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in model.named_buffers()}


def _restore_buffers(model: nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
