"""Result of one ``update_params``."""

from typing import NamedTuple

from torch import Tensor


# A tuple: a frozen dataclass takes three times as long to make.
class StepResult(NamedTuple):
    """Result of one ``update_params``.

    Reading a tensor of it (``bool(...)``, ``.item()``, printing) waits for the device: do that
    where you log. To decide whether a schedule advances, use the wrapper's ``step_skipped``, which
    does not wait.

    Attributes:
        stepped: Whether the optimizer updated the parameters. A 0-d bool tensor where only the
            device knows: a fused optimizer under a loss scaler decides inside its kernel.
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


# The most common results hold no tensor, so all steps share them.
ACCUMULATED = StepResult(stepped=False, skipped=False, grad_norm=None, loss_scale=1.0)
STEPPED = StepResult(stepped=True, skipped=False, grad_norm=None, loss_scale=1.0)
