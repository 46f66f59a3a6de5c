"""What one call of ``update_params`` did."""

from dataclasses import dataclass

from torch import Tensor


# eq=False: comparing two results would compare tensors, and that waits for the device.
@dataclass(frozen=True, eq=False)
class StepResult:
    """What became of one micro-batch.

    Nothing here was copied from the device: reading a tensor (``bool(...)``, ``.item()``,
    printing it) waits for the device, so do that where you log and not in every step.

    Attributes:
        stepped: Whether the optimizer updated the parameters. A 0-d bool tensor where only the
            device knows: a fused optimizer under a loss scaler decides inside its kernel.
        skipped: Whether gradients overflowed and the update was therefore left out. A micro-batch
            that only accumulates is neither stepped nor skipped. A tensor where ``stepped`` is.
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
