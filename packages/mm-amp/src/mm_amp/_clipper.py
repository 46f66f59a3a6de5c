"""What an optimizer wrapper asks of gradient clipping."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from ._errors import ConfigError
from ._first_fsdp import first_fsdp_modules


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
