"""Say why no parameter of an optimizer may have got a gradient."""

from typing import Any

import torch

from ._parameter_names import OwnedParameter, owned_parameters

_NUM_SHOWN = 5


def say_why_no_gradients(optimizer: torch.optim.Optimizer, model: Any) -> str:
    """Sort the parameters by what is likely to be the reason, and name the first of each.

    Args:
        optimizer: None of its parameters has a gradient.
        model: The model last used in a forward, or ``None`` if that is not known.
    """
    owned = owned_parameters(optimizer, model)
    frozen = [one for one in owned if not one.parameter.requires_grad]
    trained = [one for one in owned if one.parameter.requires_grad]
    strange = [one for one in trained if model is not None and one.module_type is None]
    unused = [one for one in trained if one not in strange]
    kinds = (
        (frozen, "frozen", "requires_grad is False."),
        (
            strange,
            f"not in {type(model).__name__}",
            "was the optimizer built for another copy, or before parameters were replaced?",
        ),
        (unused, "not reached by backward", "does the loss depend on them?"),
    )
    return " ".join(_tell(found, len(owned), *reason) for found, *reason in kinds if found)


def _tell(found: list[OwnedParameter], num_all: int, state: str, reason: str) -> str:
    names = ", ".join(one.name for one in found[:_NUM_SHOWN])
    num_more = len(found) - _NUM_SHOWN
    more = f" and {num_more} more" if num_more > 0 else ""
    return f"{len(found)} of {num_all} are {state} ({names}{more}): {reason}"
