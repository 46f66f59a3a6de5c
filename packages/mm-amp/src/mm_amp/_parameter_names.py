"""Parameters with their names in the model, whatever wraps it, and the modules that own them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ._plain_names import walk


@dataclass(frozen=True)
class OwnedParameter:
    """A parameter, and where it is.

    Attributes:
        name: In the model, or its place in the optimizer, such as ``param_groups[0][3]``.
        module: Name of the module that owns it; empty if that is the model itself or unknown.
        module_type: Class of that module, or ``None`` if the model does not hold the parameter.
        parameter: The parameter.
    """

    name: str
    module: str
    module_type: str | None
    parameter: Tensor


def named_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of ``model`` with their plain names, each once."""
    for one in _owned_by(model):
        yield one.name, one.parameter


def owned_parameters(optimizer: torch.optim.Optimizer, model: Any) -> list[OwnedParameter]:
    """Return the parameters of ``optimizer``, group by group, as ``model`` knows them.

    Args:
        optimizer: Its parameters need not be those of the model.
        model: A module or ``None``.
    """
    placed = [
        (f"param_groups[{index}][{position}]", parameter)
        for index, group in enumerate(optimizer.param_groups)
        for position, parameter in enumerate(group["params"])
    ]
    return find_owners(placed, model)


def find_owners(placed: Iterable[tuple[str, Tensor]], model: Any) -> list[OwnedParameter]:
    """Return parameters as ``model`` knows them.

    Args:
        placed: Pairs of a name for a parameter that the model does not hold, and the parameter.
        model: A module or ``None``.
    """
    known = {}
    if isinstance(model, nn.Module):
        known = {id(one.parameter): one for one in _owned_by(model)}
    return [
        known.get(id(parameter)) or OwnedParameter(place, "", None, parameter)
        for place, parameter in placed
    ]


def _owned_by(model: nn.Module) -> Iterator[OwnedParameter]:
    """Yield each parameter once, under its first name, in the order of ``model.parameters()``."""
    seen = set()
    for name, _, module in walk(model):
        for own_name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                full_name = f"{name}.{own_name}" if name else own_name
                yield OwnedParameter(full_name, name, type(module).__name__, parameter)
