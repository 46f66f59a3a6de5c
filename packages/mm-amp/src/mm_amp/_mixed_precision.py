"""Autocast for the forward, and a scaled loss where the dtype needs one."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from ._autocast import check_autocast, parse_device, resolve_dtype
from ._bfloat16_convolutions import warn_about_slow_convolutions
from ._errors import ConfigError, TorchVersionError
from ._loss_scale import build_torch_scaler, parse_loss_scale
from ._parameters import check_no_half_parameters, first_device, have_gradient
from ._precision import AbstractPrecision
from ._scaled_step import scaled_step, unscales_by_itself

_logger = logging.getLogger(__name__)
_STATE_KEY = "loss_scaler"  # MMEngine's name


class MixedPrecision(AbstractPrecision):
    """Compute in float16 or bfloat16, with a gradient scaler only for float16.

    Everything is resolved at construction, so that mistakes show there. If the parameters have
    moved to another kind of device by the first forward, and ``device_type`` was left open, it is
    resolved once more.

    Args:
        optimizer: The optimizer whose parameters are trained.
        loss_scale: As of ``AmpOptimWrapper``.
        dtype: As of ``AmpOptimWrapper``.
        use_fsdp: As of ``AmpOptimWrapper``.
        device_type: As of ``AmpOptimWrapper``.
        clips: Whether gradients are going to be clipped.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        loss_scale: object,
        dtype: str | torch.dtype | None,
        use_fsdp: bool,
        device_type: str | None,
        clips: bool,
    ) -> None:
        self._optimizer = optimizer
        self._loss_scale = parse_loss_scale(loss_scale, use_fsdp=use_fsdp)
        self._asked_dtype = dtype
        self._use_fsdp = use_fsdp
        self._is_device_given = device_type is not None
        self._clips = clips
        self._is_used = False
        self._has_warned_of_no_gradients = False
        self._unused_state: Mapping[str, Any] = {}
        self._resolve(parse_device(device_type) if device_type else first_device(optimizer))

    def _resolve(self, device: torch.device) -> None:
        self.device_type = device.type
        self.dtype = resolve_dtype(self._asked_dtype, device)
        check_autocast(self.device_type, self.dtype)
        self.scaler: Any = self._build_scaler() if self.dtype == torch.float16 else None

    def _build_scaler(self) -> Any:
        scaler = build_torch_scaler(self._loss_scale, self.device_type, use_fsdp=self._use_fsdp)
        if not scaler.is_enabled():
            return None
        if not self._use_fsdp:  # the sharded scaler takes float16 gradients
            check_no_half_parameters(self._optimizer)
        if self._clips and unscales_by_itself(self._optimizer):
            raise TorchVersionError(
                f"clip_grad was asked for with a fused {type(self._optimizer).__name__} and a "
                f"loss scaler, which torch {torch.__version__} cannot combine; "
                "use fused=False, dtype='bfloat16', or torch 2.0 or newer."
            )
        return scaler

    @override
    def forward_context(self, model: Any) -> AbstractContextManager[object]:
        if not self._is_used:
            self._is_used = True
            self._follow_parameters()
            warn_about_slow_convolutions(model, self.device_type, self.dtype)
        return torch.autocast(self.device_type, dtype=self.dtype)

    def _follow_parameters(self) -> None:
        device = first_device(self._optimizer)
        if self._is_device_given or device.type == self.device_type:
            return
        state = self.state_dict() or self._unused_state
        before = f"{self.dtype} on {self.device_type}"
        self._resolve(device)
        if state:
            self.load_state_dict(state)
        _logger.info(
            "The parameters moved since this wrapper was built: autocast to %s on %s, not to %s.",
            self.dtype,
            self.device_type,
            before,
        )

    @override
    def scale(self, loss: Tensor) -> Tensor:
        if self.scaler is None:
            return loss
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    @override
    def loss_scale(self) -> float | Tensor:
        if self.scaler is None:
            return 1.0
        # get_scale() would wait for the device; scaling a one reads the factor there.
        scale: Tensor = self.scaler.scale(torch.ones((), device=first_device(self._optimizer)))
        return scale

    @override
    def unscale(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self._optimizer)

    @override
    def step(self, **kwargs: Any) -> tuple[bool | Tensor, bool | Tensor]:
        if self.scaler is None:
            self._optimizer.step(**kwargs)
            return True, False
        if not self._use_fsdp and not have_gradient(self._optimizer):
            self._warn_of_no_gradients()
            return False, False
        done = scaled_step(self.scaler, self._optimizer, **kwargs)
        self.scaler.update(self._loss_scale.static)
        return done

    def _warn_of_no_gradients(self) -> None:
        """Warn, once: torch's scaler would fail with "No inf checks were recorded"."""
        if not self._has_warned_of_no_gradients:
            self._has_warned_of_no_gradients = True
            _logger.warning(
                "No parameter of the optimizer has a gradient, so nothing was stepped: are they "
                "all frozen, or was the optimizer built for another copy of the model?"
            )

    @override
    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else {_STATE_KEY: self.scaler.state_dict()}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.scaler is None:
            # The parameters may yet move to where a scaler is needed.
            self._unused_state = {key: state[key] for key in (_STATE_KEY,) if key in state}
            return
        saved = state.get(_STATE_KEY)
        if not saved:  # MMEngine saves an empty dict for a scaler that is off
            _logger.info("The state holds no loss scaler; the loss scale starts afresh.")
            return
        missing = sorted(self.scaler.state_dict().keys() - saved.keys())
        if missing:
            raise ConfigError(
                f"The state's {_STATE_KEY} lacks {', '.join(missing)}; "
                "it must be what state_dict() of a wrapper returned."
            )
        static = self._loss_scale.static
        self.scaler.load_state_dict(saved if static is None else {**saved, "scale": static})
