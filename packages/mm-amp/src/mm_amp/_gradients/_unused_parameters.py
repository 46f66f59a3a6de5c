"""Parameters that a loss does not depend on."""

import logging
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from mm_amp._checks import check_loss
from mm_amp._errors import ConfigError
from mm_amp._model._names import named_parameters
from mm_amp._model._parameters import refuse_first_fsdp

_logger = logging.getLogger(__name__)


def detect_anomalous_params(loss: Tensor, model: nn.Module) -> list[str]:
    """Return the names of trainable parameters of ``model`` that are not in the graph of ``loss``.

    Backward gives them no gradient, and ``DistributedDataParallel`` waits for one. Mostly a branch
    of the model was not run, or its output was detached. Call it between forward and backward;
    nothing is read from the device.

    Args:
        loss: The loss before its backward, one element.
        model: The model as it was called: plain, or wrapped by DDP or ``torch.compile``. Within
            reentrant checkpointing (``use_reentrant=True``) the graph hides its parameters, which
            are then named too.

    Returns:
        Their names in the model, in its order, without those of wrappers. If there are any, one
        warning lists them with their shapes.

    Raises:
        ConfigError: If ``loss`` is no scalar with a gradient, or the model is sharded.

    Example:
        >>> used, idle = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> model = torch.nn.ModuleDict(dict(used=used, idle=idle))
        >>> detect_anomalous_params(used(torch.ones(1, 2)).sum(), model)
        ['idle.weight', 'idle.bias']
    """
    refuse_first_fsdp(model)
    if any(hasattr(part, "set_requires_gradient_sync") for part in model.modules()):
        raise ConfigError(
            f"detect_anomalous_params was asked about a {type(model).__name__} that is sharded, "
            "whose own parameters are not those in the graph; ask before sharding."
        )
    reached = {id(leaf) for leaf in _leaves(check_loss(loss))}
    unused = [
        one
        for one in named_parameters(model)
        if one.parameter.requires_grad and id(one.parameter) not in reached
    ]
    if unused:
        listed = ", ".join(f"{one.name} {tuple(one.parameter.shape)}" for one in unused)
        _logger.warning("Parameters that the loss does not depend on: %s", listed)
    return [one.name for one in unused]


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the tensors at which backward from ``loss`` would leave a gradient."""
    if loss.grad_fn is None:  # a parameter that is its own loss
        yield loss
        return
    waiting: list[Any] = [loss.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
