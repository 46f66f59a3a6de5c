"""What an optimizer wrapper asks of gradient clipping."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from ._errors import ConfigError
from ._first_fsdp import first_fsdp_modules
from ._parameter_names import find_owners


class AbstractClipper(ABC):
    """Changes gradients in place, just before the optimizer reads them."""

    @abstractmethod
    def clip(self, parameters: list[Tensor], model: Any) -> Tensor | None:
        """Clip the gradients of ``parameters``, all of which have one.

        Args:
            parameters: What the optimizer is about to step.
            model: The model last used in a forward, or ``None``.

        Returns:
            The total norm before clipping as a 0-d tensor on the device, or ``None`` where
            clipping does not measure it.
        """


def check_no_first_fsdp(model: Any, kind: str, remedy: str) -> None:
    """Raise if torch's first FSDP is inside ``model``: each rank then holds flat shards only.

    Raises:
        ConfigError: If it is.
    """
    if first_fsdp_modules(model):
        raise ConfigError(
            f"clip_grad of type {kind!r} was asked for a {type(model).__name__} with parts that "
            f"FullyShardedDataParallel has flattened and split; {remedy}"
        )


def check_no_sparse(parameters: list[Tensor], model: Any) -> None:
    """Raise if a gradient is sparse, which torch could not clip; some versions can, by norm.

    Args:
        parameters: Those that have a gradient.
        model: For the names; a module or ``None``.

    Raises:
        ConfigError: Naming the first one.
    """
    sparse = [one for one in parameters if one.grad is not None and one.grad.is_sparse]
    if sparse:
        (first,) = find_owners([("a parameter", sparse[0])], model)
        raise ConfigError(
            f"clip_grad was asked for, and the gradient of {first.name} is sparse, which torch "
            f"{torch.__version__} cannot clip so; build that layer with sparse=False, or leave "
            "clip_grad out."
        )
