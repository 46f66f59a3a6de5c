"""Refuse to clip by a norm that is not finite, where ``error_if_nonfinite`` asks for that."""

from typing import Any

from torch import Tensor

from ._errors import NonFiniteError
from ._gradient_norms import local_norms, norms_on_all_ranks
from ._nonfinite_gradients import describe_nonfinite
from ._parameter_names import find_owners


class NormCheck:
    """Raises if a total norm is infinite or NaN, naming the gradients that are.

    Each look waits for the device.
    """

    def __init__(self) -> None:
        self._norms: Tensor | None = None

    def remember(self, parameters: list[Tensor]) -> None:
        """Take the gradients' norms as they are now, if clipping is about to change them."""
        self._norms = local_norms(parameters)

    def __call__(self, total: Tensor, parameters: list[Tensor], model: Any) -> None:
        """Look at ``total``.

        Args:
            total: 0-d, equal on all ranks that share gradients.
            parameters: Those whose gradients it is the norm of.
            model: The model, or ``None``.

        Raises:
            NonFiniteError: If it is not finite; on all ranks together.
        """
        norms, self._norms = self._norms, None
        if bool(total.isfinite()):
            return
        placed = ((f"gradient {index}", one) for index, one in enumerate(parameters))
        values = norms_on_all_ranks(
            local_norms(parameters) if norms is None else norms, parameters, model
        )
        found, _ = describe_nonfinite(find_owners(placed, model), values.tolist())
        raise NonFiniteError(
            f"the total norm of the gradients is {float(total):g}, and clip_grad has "
            "error_if_nonfinite=True, so nothing was stepped. "
            f"{found or f'Each alone is finite: together they are too large for {total.dtype}.'} "
            "With a loss scaler, leave error_if_nonfinite out: such a step is then skipped, and "
            "max_skips stops a run in which that goes on."
        )
