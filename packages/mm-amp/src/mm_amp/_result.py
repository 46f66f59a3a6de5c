"""What one call of ``update_params`` did."""

from typing import NamedTuple

from torch import Tensor


# A tuple, because it is made in every step, and a frozen dataclass takes three times as long.
class StepResult(NamedTuple):
    """What became of one micro-batch.

    Nothing here was copied from the device: reading a tensor (``bool(...)``, ``.item()``,
    printing it) waits for the device, so do that where you log and not in every step. To decide
    whether a schedule advances, ask the wrapper's ``step_skipped``, which never drains the device.

    Attributes:
        stepped: Whether the optimizer updated the parameters. A 0-d bool tensor where only the
            device knows: a fused optimizer under a loss scaler decides inside its kernel, and so
            does ``max_skips`` without one.
        skipped: Whether gradients overflowed and the update was therefore left out; parameters and
            state are as before. A micro-batch that only accumulates is neither stepped nor
            skipped. A tensor where ``stepped`` is.
        grad_norm: Total norm of the gradients before clipping, without the loss scale; a 0-d
            tensor on the device, infinite or NaN after an overflow. ``None`` unless this call
            stepped with ``clip_grad`` of type ``norm``.
        loss_scale: The factor that this micro-batch's loss was multiplied with: 1.0 without a
            loss scaler, else a 0-d tensor on the device.
    """

    stepped: bool | Tensor
    skipped: bool | Tensor
    grad_norm: Tensor | None
    loss_scale: float | Tensor

    def __eq__(self, other: object) -> bool:
        """Whether it is the same result: comparing tensors would wait for the device."""
        return self is other

    def __ne__(self, other: object) -> bool:
        """Whether it is another result."""
        return self is not other

    def __hash__(self) -> int:
        """Return what tells results apart."""
        return id(self)


# The two commonest results hold no tensor, so all steps share them: making one takes a while.
ACCUMULATED = StepResult(stepped=False, skipped=False, grad_norm=None, loss_scale=1.0)
STEPPED = StepResult(stepped=True, skipped=False, grad_norm=None, loss_scale=1.0)
