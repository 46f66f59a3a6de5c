"""Parameters with their names in the model, whatever wraps it, and the modules that own them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# What DDP, torch.compile, FSDP and checkpointing call the module inside.
_WRAPPED = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


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


def plain_name(name: str) -> str:
    """Drop what DDP, FSDP, torch.compile and checkpointing put into names."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPED)


def named_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of ``model`` with their plain names, each once."""
    for name, parameter in model.named_parameters():
        yield plain_name(name), parameter


def owned_parameters(optimizer: torch.optim.Optimizer, model: Any) -> list[OwnedParameter]:
    """Return the parameters of ``optimizer``, group by group, as ``model`` knows them.

    Args:
        optimizer: Its parameters need not be those of the model.
        model: A module or ``None``.
    """
    owners = _owners(model) if isinstance(model, nn.Module) else {}
    found = []
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            place = f"param_groups[{index}][{position}]"
            name, module, module_type = owners.get(id(parameter), (place, "", None))
            found.append(OwnedParameter(name, module, module_type, parameter))
    return found


def _owners(model: nn.Module) -> dict[int, tuple[str, str, str]]:
    owners: dict[int, tuple[str, str, str]] = {}
    for full_name, module in model.named_modules():
        name = plain_name(full_name)
        for own_name, parameter in module.named_parameters(recurse=False):
            own = f"{name}.{own_name}" if name else own_name
            owners.setdefault(id(parameter), (own, name, type(module).__name__))
    return owners
