"""Loss scaling: scale the loss, unscale gradients, and step only where none overflowed."""

import inspect
import logging
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from mm_amp._checks import check_bool, check_count, check_keys, check_number, did_you_mean
from mm_amp._errors import ConfigError, ConfigTypeError, TorchVersionError, UnsupportedError
from mm_amp._precision._autocast import first_device
from mm_amp._torch_private import (
    can_skip_in_kernel,
    current_scale,
    found_overflow,
    is_fused,
    mark_fused,
)

_logger = logging.getLogger(__name__)
_OPTIONS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
# The same from torch 1.13 to 2.15.
_STATE_KEYS = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}


class LossScaling:
    """One optimizer with a gradient scaler.

    Attributes:
        scaler: Torch's, or that of a device.
        static: The factor, if it never changes.
        last_loss: The loss of the last backward, without the scale, until a step that was not
            skipped.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        device_type: str,
        options: Mapping[str, Any],
        static: float | None,
    ) -> None:
        _check_dtypes(optimizer)
        self.scaler = _build_scaler(options, device_type)
        self.static = static
        self.last_loss: Tensor | None = None
        self._optimizer = optimizer
        self._is_unscaled = False
        self._is_stepping = False
        self._has_warned = False

    def has_gradient(self) -> bool:
        """Whether any parameter has a gradient, trainable or not, as torch's scaler asks."""
        groups = self._optimizer.param_groups
        return any(one.grad is not None for group in groups for one in group["params"])

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss that backward starts from."""
        if self._is_stepping:  # the last step raised; the scaler would reuse its overflow flags
            self.scaler.update(self.factor())
            self._is_unscaled = self._is_stepping = False
        self.last_loss = loss
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def factor(self) -> Tensor:
        """Return a copy of the present scale, 0-d; raise for gradients that were never scaled."""
        scale = current_scale(self.scaler)
        if scale is None:  # no loss was scaled yet
            if self.has_gradient():
                raise UnsupportedError(
                    "step() was called with gradients that no backward(loss) of this wrapper made, "
                    "so they do not have its loss scale. Call backward(loss) of the wrapper that "
                    "steps; where several optimizers train on one loss, make them one with several "
                    "parameter groups, or use dtype='bfloat16'."
                )
            scale = self.scaler.scale(torch.ones((), device=first_device(self._optimizer)))
        copied: Tensor = scale.clone()  # update() changes the scale in place
        return copied

    def unscale(self) -> None:
        """Divide the gradients by the loss scale, once per step."""
        if self._is_unscaled:
            return
        self._is_stepping = True
        self.scaler.unscale_(self._optimizer)
        self._is_unscaled = True

    def step(self, kwargs: Mapping[str, Any]) -> tuple[bool | Tensor, bool | Tensor]:
        """Step the optimizer unless gradients overflowed, and return ``(stepped, skipped)``.

        They are bools, or 0-d bool tensors for a fused optimizer.
        """
        if not self.has_gradient():  # torch's scaler would fail: "No inf checks ..."
            if not self._has_warned:
                self._has_warned = True
                _logger.warning(
                    "No parameter of the optimizer has a gradient, so nothing was stepped: are all "
                    "frozen, does the loss not depend on them, or was the optimizer built for "
                    "another copy of the model?"
                )
            return False, False
        self._is_stepping = True
        stepped: bool | Tensor
        skipped: bool | Tensor
        if self._is_left_to_kernel():
            stepped, skipped = self._step_in_kernel(kwargs)
        else:
            stepped = self._step_observed(kwargs)
            skipped = not stepped
        self.scaler.update(self.static)
        self._is_unscaled = self._is_stepping = False
        if stepped is True:
            self.last_loss = None
        self.detach_last_loss()
        return stepped, skipped

    def _is_left_to_kernel(self) -> bool:
        """Whether a fused kernel decides on the skip.

        Not before the first step with momentum: where torch's SGD skips that, the momentum stays
        uninitialized. And not with a device's own scaler, which hands itself to ``step``.
        """
        optimizer = self._optimizer
        if not can_skip_in_kernel(self.scaler, optimizer):
            return False
        is_torchs = type(self.scaler).step.__module__.startswith("torch.")
        has_momentum = any(group.get("momentum") for group in optimizer.param_groups)
        return is_torchs and (bool(optimizer.state) or not has_momentum)

    def _step_in_kernel(self, kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        try:
            self.scaler.step(self._optimizer, **kwargs)
        except BaseException:
            # The scaler removes these after a step only, and would use them in the next.
            for name in ("grad_scale", "found_inf"):
                vars(self._optimizer).pop(name, None)
            raise
        overflow = found_overflow(self.scaler, self._optimizer)
        return ~overflow, overflow

    def _step_observed(self, kwargs: Mapping[str, Any]) -> bool:
        """Call ``scaler.step`` and return whether it called ``optimizer.step``.

        torch itself waits for the device to know whether to, so nothing more has to be read.
        """
        # Optimizer hooks would do from torch 2.0 on, but break the graph of a compiled step.
        optimizer: Any = self._optimizer
        is_called = False
        original = optimizer.step
        is_replaced = "step" in optimizer.__dict__  # by a scheduler or torch.compile
        has_mark = is_fused(optimizer)

        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_called
            is_called = True
            return original(*args, **kwargs)

        optimizer.step = step
        if has_mark:
            mark_fused(optimizer, value=False)  # unscale and skip as for any other optimizer
        try:
            self.scaler.step(optimizer, **kwargs)
        finally:
            if has_mark:
                mark_fused(optimizer, value=True)
            if is_replaced:
                optimizer.step = original
            else:
                del optimizer.step
        return is_called

    def detach_last_loss(self) -> None:
        """Release the graph of the last loss, once backward is done."""
        if self.last_loss is not None:
            self.last_loss = self.last_loss.detach()

    def load_state_dict(self, saved: object) -> None:
        """Load a scaler's saved state; a static scale of the configuration wins over it."""
        if not isinstance(saved, Mapping):
            raise ConfigTypeError(
                f"The state's loss_scaler is a {type(saved).__name__}; "
                "it must be what state_dict() of a wrapper returned."
            )
        own = self.scaler.state_dict()
        # A device's own scaler may save more keys, which a state of torch's does not have.
        state = {**{key: own[key] for key in own.keys() - _STATE_KEYS}, **saved}
        missing = sorted(own.keys() - state.keys())
        if missing:
            raise ConfigError(
                f"The state's loss_scaler lacks {', '.join(missing)}; "
                "it must be what state_dict() of a wrapper returned."
            )
        if self.static is not None:
            state["scale"] = self.static
        self.scaler.load_state_dict(state)


def _check_dtypes(optimizer: torch.optim.Optimizer) -> None:
    """Raise ``ConfigError`` for a parameter whose gradient a loss scaler could not unscale."""
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            is_half = parameter.dtype == torch.float16
            if not parameter.requires_grad or not (is_half or parameter.is_complex()):
                continue
            remedy = "keep it in float32 with model.float(), or " if is_half else ""
            raise ConfigError(
                f"parameter {position} of group {index}, of shape {tuple(parameter.shape)}, is "
                f"stored in {parameter.dtype}, whose gradients a loss scaler cannot unscale; "
                f"{remedy}use dtype='bfloat16', which needs no scaler."
            )


def _build_scaler(options: Mapping[str, Any], device_type: str) -> Any:
    device_module = getattr(torch, device_type, None)
    own = getattr(getattr(device_module, "amp", None), "GradScaler", None)
    general = getattr(torch.amp, "GradScaler", None)  # torch 2.3
    # torch.cuda.amp's and torch.cpu.amp's are deprecated; a backend's own knows its hardware.
    scaler_class: Any = general or own if device_type in {"cpu", "cuda"} else own or general
    if scaler_class is None:
        raise TorchVersionError(
            f"a loss scaler was asked for on {device_type!r}, which torch {torch.__version__} "
            "lacks; use dtype='bfloat16', which needs no scaler, or torch 2.4 or newer."
        )
    if "device" in inspect.signature(scaler_class).parameters:
        return scaler_class(device=device_type, **options)
    return scaler_class(**options)


def parse_loss_scale(loss_scale: Any) -> tuple[dict[str, Any], float | None]:
    """Return arguments of torch's ``GradScaler``, and the factor if it never changes."""
    if isinstance(loss_scale, Mapping):
        return _check_options(loss_scale), None
    if not isinstance(loss_scale, bool) and isinstance(loss_scale, Real):
        static = check_number("loss_scale", loss_scale, is_finite=True)
        return {"init_scale": static}, static
    hint = did_you_mean(str(loss_scale), ["dynamic"])
    if isinstance(loss_scale, torch.dtype) or "float" in str(loss_scale):
        hint = f"; did you mean dtype={loss_scale!r}?"
    raise ConfigTypeError(
        f"loss_scale is {loss_scale!r}; it must be 'dynamic', a number (a factor that never "
        f"changes), or a dict of GradScaler arguments such as dict(init_scale=1024.0){hint}"
    )


def _check_options(given: Mapping[str, Any]) -> dict[str, Any]:
    check_keys("loss_scale", given, _OPTIONS)
    options = dict(given)
    for key in ("init_scale", "growth_factor", "backoff_factor"):
        if key in options:
            options[key] = check_number(f"loss_scale {key}", options[key], is_finite=True)
    if options.get("growth_factor", 2.0) <= 1 or options.get("backoff_factor", 0.5) >= 1:
        raise ConfigError(f"loss_scale is {given}; growth_factor is > 1, backoff_factor < 1.")
    check_count("loss_scale growth_interval", options.get("growth_interval", 1), least=1)
    check_bool("loss_scale enabled", options.get("enabled", True))
    return options
