"""Name the parameters that a loss does not depend on."""

import logging
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ._checks import check_loss
from ._errors import ConfigError
from ._first_fsdp import contains_first_fsdp
from ._parameter_names import named_parameters

_logger = logging.getLogger(__name__)


def detect_anomalous_params(loss: Tensor, model: nn.Module) -> list[str]:
    """Name the trainable parameters of ``model`` that are outside the graph of ``loss``.

    Backward gives these no gradient, and ``DistributedDataParallel`` waits for one. Mostly a branch
    of the model was not run, or its output was detached. Call it between forward and backward;
    nothing is read from the device.

    Args:
        loss: What backward would start from, one element.
        model: The model as it was called: plain, or wrapped by DDP, ``fully_shard`` or
            ``torch.compile``. Within reentrant checkpointing (``use_reentrant=True``) the graph
            hides its parameters, which are then named too.

    Returns:
        Their names in the model, in its order, without what wrappers put in front. If there are
        any, one warning is logged that lists them with their shapes.

    Raises:
        ConfigError: If ``loss`` is no scalar with a gradient, or torch's first FSDP has flattened
            the parameters: no graph then tells one from another.

    Example:
        >>> used, idle = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> model = torch.nn.ModuleDict(dict(used=used, idle=idle))
        >>> detect_anomalous_params(used(torch.ones(1, 2)).sum(), model)
        ['idle.weight', 'idle.bias']
    """
    if contains_first_fsdp(model):
        raise ConfigError(
            f"detect_anomalous_params was asked about a {type(model).__name__} with parts that "
            "FullyShardedDataParallel has flattened, where all parameters of a part look the same; "
            "ask before wrapping, or use fully_shard."
        )
    reached = {id(leaf) for leaf in _leaves(check_loss(loss))}
    reached |= {
        id(sharded) for sharded, whole in _sharded_parameters(model) if id(whole) in reached
    }
    idle = {
        name: parameter
        for name, parameter in named_parameters(model)
        if parameter.requires_grad and id(parameter) not in reached
    }
    if idle:
        listed = ", ".join(f"{name} {tuple(parameter.shape)}" for name, parameter in idle.items())
        _logger.warning("Parameters that the loss does not depend on: %s", listed)
    return list(idle)


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


def _sharded_parameters(model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(sharded, whole)`` for the parameters of ``fully_shard``.

    The graph knows the whole ones, which exist in the forward only; the model has the sharded ones.
    """
    for module in model.modules():
        if not hasattr(type(module), "_get_fsdp_state"):
            continue
        # torch has no public way from one to the other.
        state: Any = module._get_fsdp_state()  # type: ignore[operator]  # noqa: SLF001
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # noqa: SLF001
        for group in groups:
            for parameter in group.fsdp_params if group is not None else ():
                if hasattr(parameter, "_unsharded_param"):
                    yield parameter.sharded_param, parameter._unsharded_param  # noqa: SLF001
