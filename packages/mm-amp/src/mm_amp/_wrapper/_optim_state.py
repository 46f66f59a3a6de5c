"""State and settings of an optimizer as checkpoints and logs have them."""

import logging
from collections.abc import Mapping
from typing import Any

import torch

from mm_amp._errors import ConfigError, ConfigTypeError
from mm_amp._scaling._loss_scaling import SCALER_KEY
from mm_amp._scaling._skips import SKIPS_KEY

_logger = logging.getLogger(__name__)
_NOT_TORCH = (SCALER_KEY, SKIPS_KEY, "base_param_settings")


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load the optimizer's own part of a wrapper's state.

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


def log_scaler_state(*, is_saved: bool, is_used: bool) -> None:
    """Log, in one line, a loss scaler that only the state has, or only the wrapper."""
    if is_saved and not is_used:
        _logger.info("The state holds a loss scaler, which is not used: the loss is not scaled.")
    elif is_used and not is_saved:
        _logger.info("The state holds no loss scaler; the loss scale starts afresh.")


def momentum_of(group: Mapping[str, Any]) -> float:
    """Return a parameter group's momentum, else its first beta, else 0."""
    momentum: float = group["momentum"] if "momentum" in group else group.get("betas", (0.0,))[0]
    return momentum
