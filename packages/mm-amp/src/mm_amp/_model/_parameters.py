"""Parameters of an optimizer and of its model; reads metadata only, never values."""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from mm_amp._errors import ConfigError


class ModelOrder:
    """Lists an optimizer's parameters in the order of the model.

    A norm over them is then, bit by bit, that of ``clip_grad_norm_(model.parameters())``.
    """

    def __init__(self) -> None:
        self._model: Any = None
        self._found: list[Tensor] = []  # held, so that no other tensor can take their ids
        self._ids: list[int] = []
        self._sorted: list[Tensor] = []

    def parameters_with_gradient(
        self, optimizer: torch.optim.Optimizer, model: Any
    ) -> list[Tensor]:
        """Return the trainable parameters that have a gradient.

        Args:
            optimizer: Its parameters are listed.
            model: A module gives the order, in which others come last; else group by group.
        """
        groups = optimizer.param_groups
        found = [p for g in groups for p in g["params"] if p.grad is not None and p.requires_grad]
        if not isinstance(model, nn.Module):
            return found
        ids = list(map(id, found))
        if model is not self._model or ids != self._ids:
            places = {id(one): place for place, one in enumerate(model.parameters())}
            self._sorted = sorted(found, key=lambda one: places.get(id(one), len(places)))
            self._model, self._found, self._ids = model, found, ids
        return self._sorted


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return all parameters of the optimizer, group by group."""
    return [one for group in optimizer.param_groups for one in group["params"]]


def local_gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the live gradients; of a sharded parameter the part on this rank."""
    return [local_part(one.grad) for one in parameters_of(optimizer) if one.grad is not None]


def local_part(tensor: Any) -> Tensor:
    """Return the part of a tensor that is on this rank; live."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def have_gradient(optimizer: torch.optim.Optimizer) -> bool:
    """Whether any parameter has a gradient, trainable or not, as torch's scaler asks."""
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def first_device(optimizer: torch.optim.Optimizer) -> torch.device:
    """Return the device of the optimizer's first parameter.

    Raises:
        ConfigError: If there is none, or it is on the meta device.
    """
    for parameter in parameters_of(optimizer):
        if parameter.device.type == "meta":
            raise ConfigError(
                "the device of autocast is that of the first parameter, which is still on "
                "'meta'; pass device_type, such as device_type='cuda'."
            )
        return parameter.device
    raise ConfigError("the optimizer has no parameters; give it some before wrapping it.")


def check_no_half_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Raise if a loss scaler could not unscale the gradients of a parameter.

    Raises:
        ConfigError: Naming the first parameter in float16 or of a complex dtype.
    """
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            if not parameter.requires_grad:
                continue
            if parameter.is_complex():
                remedy = "use dtype='bfloat16', which needs no scaler."
            elif parameter.dtype == torch.float16:
                remedy = (
                    "keep the parameters in float32 with model.float() (autocast casts them in "
                    "the forward), or use dtype='bfloat16'."
                )
            else:
                continue
            stored = str(parameter.dtype).removeprefix("torch.")
            raise ConfigError(
                f"parameter {position} of group {index}, of shape {tuple(parameter.shape)}, is "
                f"stored in {stored}, whose gradients a loss scaler cannot unscale; {remedy}"
            )


def first_fsdp_modules(model: Any) -> list[Any]:
    """Return the modules of ``model`` that torch's ``FullyShardedDataParallel`` wraps."""
    # Importing it takes seconds; where it was never imported, no module can be one.
    module = sys.modules.get("torch.distributed.fsdp")
    wrapper = getattr(module, "FullyShardedDataParallel", None)
    if wrapper is None or not hasattr(model, "modules"):
        return []
    return [part for part in model.modules() if isinstance(part, wrapper)]
