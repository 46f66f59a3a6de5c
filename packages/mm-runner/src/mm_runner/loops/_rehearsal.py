"""A first step whose effects are undone, under ``deterministic=True``.

torch's DistributedDataParallel puts gradients into buckets by the order of parameters, and rebuilds
them before its second step by the order in which gradients came. The order in which the ranks'
values are added depends on the buckets: beyond two ranks, a resumed run differs in the last bits
from one without a stop, unless its first step is rehearsed.
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

__all__ = ["needs_rehearsal", "rehearse_step"]


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
    buffers = [(one, one.detach().clone()) for one in model.buffers()]  # not only those saved
    modes = [(module, module.training) for module in model.modules()]
    wrappers = named_wrappers(runner.optim_wrapper).values()
    for _ in range(max(getattr(wrapper, "accumulative_counts", 1) for wrapper in wrappers)):
        step(copy.deepcopy(batch), runner.optim_wrapper)
    restore()
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    for module, was_training in modes:
        module.training = was_training
    optimizers = [wrapper.optimizer for wrapper in wrappers]
    # torch_npu's have packed the gradients by now, and keep reading these tensors.
    packing = [one for one in optimizers if getattr(one, "is_fused_optimizer", False)]
    packed = {id(p) for one in packing for group in one.param_groups for p in group["params"]}
    for parameter in model.parameters():
        if id(parameter) not in packed:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.zero_()
    runner.optim_wrapper.initialize_count_status(model, runner.iter, runner.max_iters)
    set_rng_state(generators, runner.device)
