"""Autocast for the forward, and a scaled loss where the dtype needs one."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from ._autocast import check_autocast, parse_device
from ._autocast_dtype import resolve_dtype
from ._checks import check_bool
from ._errors import ConfigError, ConfigTypeError, TorchVersionError
from ._first_fsdp import contains_first_fsdp
from ._loss_scale import LossScale, build_torch_scaler, parse_loss_scale
from ._loss_scaling import LossScaling
from ._optim_state import SCALER_KEY, tell_of_unused_scaler
from ._parameters import check_no_half_parameters, first_device
from ._precision import NO_CONTEXT, AbstractPrecision
from ._scaled_step import unscales_by_itself
from ._weight_cache import autocast_builder

if TYPE_CHECKING:
    from ._fp32_islands import IslandsOfWrapper

_logger = logging.getLogger(__name__)
# The same from torch 1.13 to 2.15.
_KEYS_OF_TORCH = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}


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
        fp32_modules: As of ``AmpOptimWrapper``.
        enabled: As of ``AmpOptimWrapper``.
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
        fp32_modules: str | Iterable[str],
        enabled: bool,
        clips: bool,
    ) -> None:
        self._optimizer = optimizer
        self._loss_scale = parse_loss_scale(loss_scale, use_fsdp=use_fsdp)
        is_enabled = check_bool("enabled", enabled) and dtype not in {"float32", torch.float32}
        self._asked_dtype = dtype if is_enabled else torch.float32
        self._use_fsdp = use_fsdp
        self._islands = _build_islands(fp32_modules)
        self._is_device_given = device_type is not None
        self._clips = clips
        self._is_used = False
        self._unused_state: Mapping[str, Any] = {}
        self._resolve(parse_device(device_type) if device_type else first_device(optimizer))

    def _resolve(self, device: torch.device) -> None:
        self.device_type = device.type
        self.scaling = None
        if self._asked_dtype == torch.float32:
            self.dtype = torch.float32
            return
        self.dtype = resolve_dtype(self._asked_dtype, device)
        check_autocast(self.device_type, self.dtype)
        if self.dtype == torch.float16:
            self.scaling = self._build_scaling()
        self._new_autocast = autocast_builder()

    def _build_scaling(self) -> LossScaling | None:
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
        return LossScaling(
            scaler,
            self._optimizer,
            static=self._loss_scale.static,
            is_sharded=self._use_fsdp,
        )

    @override
    def prepare(self, model: Any) -> None:
        if self._islands is not None:
            self._islands.add_to(model, self.device_type)

    @override
    def forward_context(self, model: Any) -> AbstractContextManager[object]:
        if not self._is_used:
            self._look_once_more(model)
        if self._islands is not None:
            self._islands.add_to(model, self.device_type)
        if self.dtype == torch.float32:
            return NO_CONTEXT
        return self._new_autocast(self.device_type, dtype=self.dtype)

    def _look_once_more(self, model: Any) -> None:
        """Take in what the first forward shows and the optimizer alone did not."""
        self._is_used = True
        self._follow_parameters()
        self._follow_sharding(model)
        if self.device_type == "cuda" and self.dtype == torch.bfloat16:
            from ._bfloat16_convolutions import warn_about_bfloat16  # noqa: PLC0415 - once

            warn_about_bfloat16(model, self.device_type, self.dtype)

    def _follow_parameters(self) -> None:
        device = first_device(self._optimizer)
        if self._is_device_given or device.type == self.device_type:
            return
        state = self.state_dict() or self._unused_state
        before = f"{self.dtype} on {self.device_type}"
        self._resolve(device)
        if state:
            self.load_state_dict(state)
        if self._islands is not None:
            self._islands.undo()  # they know the device; the forward makes them again
        _logger.info(
            "The parameters moved since this wrapper was built: autocast to %s on %s, not to %s.",
            self.dtype,
            self.device_type,
            before,
        )

    def _follow_sharding(self, model: Any) -> None:
        """Take the scaler whose ranks agree if the model is one of torch's first FSDP."""
        if self.scaling is None or self._use_fsdp or not contains_first_fsdp(model):
            return
        self._use_fsdp = True
        state = self.state_dict()
        self.scaling = self._build_scaling()
        self.load_state_dict(state)

    @property
    def scaler(self) -> Any:
        """Torch's gradient scaler, or ``None`` where the loss is not scaled."""
        return None if self.scaling is None else self.scaling.scaler

    @property
    def fp32_modules(self) -> tuple[str, ...]:
        """The patterns of the islands."""
        return () if self._islands is None else self._islands.patterns

    @property
    def asked_scale(self) -> LossScale:
        """What ``loss_scale`` asked for."""
        return self._loss_scale

    @override
    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else {SCALER_KEY: self.scaler.state_dict()}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.scaler is None:
            # The parameters may yet move to where a scaler is needed.
            self._unused_state = {key: state[key] for key in (SCALER_KEY,) if key in state}
            tell_of_unused_scaler(state)
            return
        saved = state.get(SCALER_KEY)
        if not saved:  # MMEngine saves an empty dict for a scaler that is off
            _logger.info("The state holds no loss scaler; the loss scale starts afresh.")
            return
        if not isinstance(saved, Mapping):
            raise ConfigTypeError(
                f"The state's {SCALER_KEY} is a {type(saved).__name__}; "
                "it must be what state_dict() of a wrapper returned."
            )
        own = self.scaler.state_dict()
        # A device's own scaler can keep more, which a state of torch's does not have.
        saved = {**{key: own[key] for key in own.keys() - _KEYS_OF_TORCH}, **saved}
        missing = sorted(own.keys() - saved.keys())
        if missing:
            raise ConfigError(
                f"The state's {SCALER_KEY} lacks {', '.join(missing)}; "
                "it must be what state_dict() of a wrapper returned."
            )
        static = self._loss_scale.static
        self.scaler.load_state_dict(saved if static is None else {**saved, "scale": static})


def _build_islands(patterns: str | Iterable[str]) -> "IslandsOfWrapper | None":
    if patterns == ():
        return None
    from ._fp32_islands import IslandsOfWrapper  # noqa: PLC0415 - most runs have none

    return IslandsOfWrapper(patterns)
