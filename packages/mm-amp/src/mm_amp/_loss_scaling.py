"""Scale the loss, and step only where its gradients did not overflow."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ._errors import UnsupportedError
from ._parameters import first_device, have_gradient
from ._scaled_step import scaled_step, skips_by_itself

_logger = logging.getLogger(__name__)


class LossScaling:
    """One optimizer with torch's gradient scaler.

    Args:
        scaler: Torch's, of any device, or the sharded one.
        optimizer: Whose gradients are scaled.
        static: The factor, if it never changes.
        is_sharded: Whether the scaler is the one of torch's first FSDP.

    Attributes:
        scaler: As given.
        last_loss: What the last backward started from, without the scale, until a step that was not
            skipped.
    """

    def __init__(
        self,
        scaler: Any,
        optimizer: torch.optim.Optimizer,
        *,
        static: float | None,
        is_sharded: bool,
    ) -> None:
        self.scaler = scaler
        self.last_loss: Tensor | None = None
        self._optimizer = optimizer
        self._static = static
        self._is_sharded = is_sharded
        self._is_unscaled = False
        self._is_stepping = False
        self._has_warned = False

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss that backward starts from."""
        if self._is_stepping:
            self._give_up_step()
        self.last_loss = loss  # detach() would cost as much as a call; mostly step drops it
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def factor(self) -> Tensor:
        """Return a copy of the present scale, 0-d.

        Raises:
            UnsupportedError: If there are gradients, though no loss was ever scaled.
        """
        # get_scale() would wait for the device. The scale itself is changed in place by update().
        now = self.scaler._get_scale_async()  # noqa: SLF001 - the same from torch 1.13 to 2.15
        if now is None:  # nothing was scaled yet
            self._check_no_gradients()
            now = self.scaler.scale(torch.ones((), device=first_device(self._optimizer)))
        scale: Tensor = now.clone()
        return scale

    def unscale(self) -> None:
        """Take the scale out of the gradients, once, for clipping to see the true ones."""
        if self._is_unscaled:  # by a step that failed, and is tried again
            return
        self._is_stepping = True
        self.scaler.unscale_(self._optimizer)
        self._is_unscaled = True

    def step(self, kwargs: Mapping[str, Any], model: Any) -> tuple[bool | Tensor, bool | Tensor]:
        """Step the optimizer unless gradients overflowed; return ``(stepped, skipped)``.

        Args:
            kwargs: Of ``optimizer.step``.
            model: The model last used in a forward, or ``None``; for messages.
        """
        if not self._is_sharded and not have_gradient(self._optimizer):
            self._warn_of_no_gradients(model)
            return False, False
        if self._is_sharded and skips_by_itself(self._optimizer) and not self._is_unscaled:
            self.unscale()  # where ranks agree on an overflow; left to step, they would not
        self._is_stepping = True
        done = scaled_step(self.scaler, self._optimizer, kwargs)
        self.scaler.update(self._static)
        self._is_unscaled = self._is_stepping = False
        if done[0] is True:
            self.last_loss = None
        self.let_graph_go()
        return done

    def let_graph_go(self) -> None:
        """Keep of the last loss its value only, once backward is done."""
        if self.last_loss is not None:
            self.last_loss = self.last_loss.detach()

    def _give_up_step(self) -> None:
        """Let torch's scaler forget a step that failed; it would take new gradients for its own."""
        self.scaler.update(self.factor())
        self._is_unscaled = self._is_stepping = False

    def _check_no_gradients(self) -> None:
        """Raise if there are any: the step would divide them by a scale that they do not have."""
        if have_gradient(self._optimizer):
            raise UnsupportedError(
                "step() was called with gradients that no backward(loss) of this wrapper made, so "
                "they do not have its loss scale. Call backward(loss) of the wrapper that steps; "
                "where several optimizers train on one loss, make them one with several parameter "
                "groups, or use dtype='bfloat16'."
            )

    def _warn_of_no_gradients(self, model: Any) -> None:
        """Warn, once: torch's scaler would fail with "No inf checks were recorded"."""
        if not self._has_warned:
            self._has_warned = True
            from ._no_gradients import say_why_no_gradients  # noqa: PLC0415 - hardly ever

            _logger.warning(
                "No parameter of the optimizer has a gradient, so nothing was stepped. %s",
                say_why_no_gradients(self._optimizer, model),
            )
