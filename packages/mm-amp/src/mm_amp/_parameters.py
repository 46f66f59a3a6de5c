"""Look at the parameters of an optimizer; metadata only, never their values."""

import torch
from torch import Tensor

from ._errors import ConfigError


def parameters_with_gradient(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the trainable parameters that a backward has reached, group by group."""
    groups = optimizer.param_groups
    return [p for g in groups for p in g["params"] if p.grad is not None and p.requires_grad]


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
    """Raise if a parameter to be trained is stored in float16, which no scaler can unscale.

    Raises:
        ConfigError: Naming the first one.
    """
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            if parameter.requires_grad and parameter.dtype == torch.float16:
                raise ConfigError(
                    f"parameter {position} of group {index}, of shape {tuple(parameter.shape)}, is "
                    "stored in float16, whose gradients a loss scaler cannot unscale; keep the "
                    "parameters in float32 with model.float() (autocast casts them in the "
                    "forward), or use dtype='bfloat16'."
                )
