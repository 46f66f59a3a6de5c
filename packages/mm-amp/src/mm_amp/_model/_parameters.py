"""Parameters of an optimizer and of its model; reads metadata only, never values."""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from mm_amp._errors import ConfigError, UnsupportedError


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
        """Return the trainable parameters that have a gradient; those outside a model last."""
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
    parameters = parameters_of(optimizer)
    if not parameters:
        raise ConfigError("the optimizer has no parameters; give it some before wrapping it.")
    if parameters[0].device.type == "meta":
        raise ConfigError(
            "the device of autocast is that of the first parameter, which is still on 'meta'; "
            "pass device_type, such as device_type='cuda'."
        )
    return parameters[0].device


def check_no_half_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Raise ``ConfigError`` for a parameter whose gradient a loss scaler could not unscale."""
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            is_half = parameter.dtype == torch.float16
            if not parameter.requires_grad or not (is_half or parameter.is_complex()):
                continue
            remedy = "use dtype='bfloat16', which needs no scaler."
            if is_half:
                remedy = (
                    "keep the parameters in float32 with model.float() (autocast casts them in "
                    f"the forward), or {remedy}"
                )
            stored = str(parameter.dtype).removeprefix("torch.")
            raise ConfigError(
                f"parameter {position} of group {index}, of shape {tuple(parameter.shape)}, is "
                f"stored in {stored}, whose gradients a loss scaler cannot unscale; {remedy}"
            )


def refuse_first_fsdp(model: Any) -> None:
    """Raise ``UnsupportedError`` if torch's ``FullyShardedDataParallel`` is in ``model``."""
    # Importing it takes seconds; where it was never imported, no module can be one.
    wrapper = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    if wrapper is None or not isinstance(model, nn.Module):
        return
    if any(isinstance(part, wrapper) for part in model.modules()):
        raise UnsupportedError(
            "the model has parts in torch's first FSDP, FullyShardedDataParallel, which is not "
            "supported; shard it with torch.distributed.fsdp.fully_shard (torch 2.6)."
        )
