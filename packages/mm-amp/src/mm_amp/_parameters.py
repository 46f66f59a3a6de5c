"""Look at the parameters of an optimizer; metadata only, never their values."""

from typing import Any

import torch
from torch import Tensor, nn

from ._errors import ConfigError


class ModelOrder:
    """Lists an optimizer's parameters as the model does.

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
        """Return the trainable parameters that a backward has reached.

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


def local_gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return every gradient, of a sharded parameter the part on this rank; live tensors."""
    gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    return [g.to_local() if hasattr(g, "to_local") else g for g in gradients]


def have_gradient(optimizer: torch.optim.Optimizer) -> bool:
    """Whether any parameter has a gradient, trainable or not: what torch's scaler looks at."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:  # mostly the first has one
            if parameter.grad is not None:
                return True
    return False


def first_device(optimizer: torch.optim.Optimizer) -> torch.device:
    """Return the device of the optimizer's first parameter.

    Raises:
        ConfigError: If there is none, or it is on the meta device.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            device: torch.device = parameter.device
            if device.type == "meta":
                raise ConfigError(
                    "the device of autocast is that of the first parameter, which is still on "
                    "'meta'; pass device_type, such as device_type='cuda'."
                )
            return device
    raise ConfigError("the optimizer has no parameters; give it some before wrapping it.")


def check_no_half_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Raise if a parameter to be trained is of a dtype whose gradients no scaler can unscale.

    Raises:
        ConfigError: Naming the first one.
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
