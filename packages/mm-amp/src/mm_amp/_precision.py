"""What an optimizer wrapper asks of a precision, and the plain answer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override


class AbstractPrecision(ABC):
    """How the forward computes, how the loss is scaled, and how the optimizer then steps."""

    @abstractmethod
    def forward_context(self, model: Any) -> AbstractContextManager[object]:
        """Return the context that the forward of ``model`` runs in."""

    @abstractmethod
    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss that backward starts from."""

    @abstractmethod
    def loss_scale(self) -> float | Tensor:
        """Return the present factor of ``scale``; a tensor is a copy of its own."""

    @abstractmethod
    def unscale(self) -> None:
        """Take the factor out of the gradients, once, for clipping to see the true ones."""

    @abstractmethod
    def step(self, **kwargs: Any) -> tuple[bool | Tensor, bool | Tensor]:
        """Step the optimizer unless gradients overflowed; return ``(stepped, skipped)``."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what to add to the optimizer's own state."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Read back what ``state_dict`` added; it may be absent."""


class FullPrecision(AbstractPrecision):
    """Compute in the dtype of the parameters; nothing is cast, scaled or skipped."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    @override
    def forward_context(self, model: Any) -> AbstractContextManager[object]:
        return nullcontext()

    @override
    def scale(self, loss: Tensor) -> Tensor:
        return loss

    @override
    def loss_scale(self) -> float | Tensor:
        return 1.0

    @override
    def unscale(self) -> None:
        pass

    @override
    def step(self, **kwargs: Any) -> tuple[bool | Tensor, bool | Tensor]:
        self._optimizer.step(**kwargs)
        return True, False

    @override
    def state_dict(self) -> dict[str, Any]:
        return {}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
