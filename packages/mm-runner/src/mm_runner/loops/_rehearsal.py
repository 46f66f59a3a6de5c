"""A first step that leaves no trace but in torch's DistributedDataParallel.

It puts gradients into buckets by the order of parameters, and rebuilds them before its second
step by the order in which gradients came. What lies where in a bucket decides in which order the
ranks' values are added; so beyond two ranks, a resumed run differs in the last bits from one
without a stop, unless its first step is rehearsed, as it is under ``deterministic=True``.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from mm_runner.checkpoint import rng_state, set_rng_state
from mm_runner.optim import named_wrappers

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from mm_runner.run_view import RunView

__all__ = ["needs_rehearsal", "rehearse"]


def needs_rehearsal(model: nn.Module, world_size: int) -> bool:
    """Tell whether ``model`` exchanges gradients otherwise in its first step."""
    # The sum of two is the same in either order.
    return world_size > 2 and any(
        isinstance(module, DistributedDataParallel) for module in model.modules()
    )


def rehearse(
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
    # Those that are not saved, too.
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    modes = {module: module.training for module in model.modules()}
    for _ in range(_micro_batches_of_a_step(runner.optim_wrapper)):
        step(copy.deepcopy(batch), runner.optim_wrapper)
    restore()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
    for module, was_training in modes.items():
        module.training = was_training
    _clear_gradients(model, runner.optim_wrapper)
    runner.optim_wrapper.initialize_count_status(model, runner.iter, runner.max_iters)
    set_rng_state(generators, runner.device)


def _clear_gradients(model: nn.Module, optim_wrapper: Any) -> None:
    optimizers = [wrapper.optimizer for wrapper in named_wrappers(optim_wrapper).values()]
    # torch_npu's, which have packed them by now, go on to read these tensors.
    packing = [one for one in optimizers if getattr(one, "is_fused_optimizer", False)]
    packed = {id(p) for one in packing for group in one.param_groups for p in group["params"]}
    for parameter in model.parameters():
        if id(parameter) not in packed:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.zero_()


def _micro_batches_of_a_step(optim_wrapper: Any) -> int:
    wrappers = named_wrappers(optim_wrapper).values()
    return max(getattr(wrapper, "accumulative_counts", 1) for wrapper in wrappers)
