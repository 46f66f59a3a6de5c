"""What optimizers keep: their state as a checkpoint has it, and what loops log of their groups."""

import logging
from collections.abc import Mapping
from typing import Any

import torch

from ._errors import ConfigError, ConfigTypeError
from ._skips import SKIPS_KEY

_logger = logging.getLogger(__name__)
SCALER_KEY = "loss_scaler"  # MMEngine's name
_NOT_TORCH = (SCALER_KEY, SKIPS_KEY, "base_param_settings")


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load the optimizer's own part of a wrapper's state, here or in MMEngine.

    Args:
        optimizer: To be loaded into.
        state: Left as it is. MMEngine's ``base_param_settings`` is ignored: it repeats the
            optimizer's defaults for MMEngine's logging.

    Raises:
        ConfigError: If it is no optimizer's state.
    """
    if not isinstance(state, Mapping):
        raise ConfigTypeError(
            f"the state is a {type(state).__name__}; pass what state_dict() of a wrapper or of a "
            "torch optimizer returned."
        )
    missing = [key for key in ("state", "param_groups") if key not in state]
    if missing:
        raise ConfigError(
            f"the state has no {' and no '.join(missing)}, only {', '.join(map(str, state))}; "
            "pass what state_dict() of a wrapper or of a torch optimizer returned."
        )
    optimizer.load_state_dict({key: state[key] for key in state if key not in _NOT_TORCH})


def tell_of_unused_scaler(state: Mapping[str, Any]) -> None:
    """Log, in one line, that a loss scaler in ``state`` is left out, if there is one."""
    if state.get(SCALER_KEY):  # MMEngine saves an empty dict for a scaler that is off
        _logger.info("The state holds a loss scaler, which is not used: the loss is not scaled.")


def momentum_of(group: Mapping[str, Any]) -> float:
    """Return a parameter group's momentum, else its first beta, else 0."""
    if "momentum" in group:
        momentum: float = group["momentum"]
        return momentum
    first_beta: float = group.get("betas", (0.0,))[0]
    return first_beta
