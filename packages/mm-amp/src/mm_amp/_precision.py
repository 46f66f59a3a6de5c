"""What an optimizer wrapper asks of a precision, and the plain answer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from typing_extensions import override

from ._loss_scaling import LossScaling
from ._optim_state import tell_of_unused_scaler

NO_CONTEXT = nullcontext()  # holds no state, so all forwards can share it


class AbstractPrecision(ABC):
    """How the forward computes, and whether the loss is scaled.

    Attributes:
        scaling: Scales the loss and steps the optimizer; ``None`` where nothing is scaled.
    """

    scaling: LossScaling | None = None

    @abstractmethod
    def prepare(self, model: Any) -> None:
        """Make ``model`` ready for its first forward; called again, also with others."""

    @abstractmethod
    def forward_context(self, model: Any) -> AbstractContextManager[object]:
        """Return the context that the forward of ``model`` runs in."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what to add to the optimizer's own state."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Read back what ``state_dict`` added; it may be absent."""


class FullPrecision(AbstractPrecision):
    """Compute in the dtype of the parameters; nothing is cast, scaled or skipped."""

    @override
    def prepare(self, model: Any) -> None:
        pass

    @override
    def forward_context(self, model: Any) -> AbstractContextManager[object]:
        return NO_CONTEXT

    @override
    def state_dict(self) -> dict[str, Any]:
        return {}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        tell_of_unused_scaler(state)
