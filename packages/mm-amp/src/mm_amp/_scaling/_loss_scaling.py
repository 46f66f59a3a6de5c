"""Loss scaling: scale the loss, unscale gradients, and step only where none overflowed."""

import inspect
import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mm_amp._checks import (
    check_bool,
    check_count,
    check_finite_number,
    check_keys,
    did_you_mean,
    is_number,
)
from mm_amp._errors import ConfigError, ConfigTypeError, TorchVersionError, UnsupportedError
from mm_amp._model._parameters import first_device, have_gradient
from mm_amp._torch_private import (
    can_skip_in_kernel,
    current_scale,
    found_overflow,
    set_skips_in_kernel,
    skips_in_kernel,
)

_logger = logging.getLogger(__name__)
SCALER_KEY = "loss_scaler"  # MMEngine's name
_DYNAMIC = "dynamic"
_SMALLEST_USEFUL_SCALE = 2.0**-16
_OPTIONS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
# The same from torch 1.13 to 2.15.
_STATE_KEYS = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}


class LossScale(NamedTuple):
    """Parsed ``loss_scale``.

    Attributes:
        options: Arguments of torch's ``GradScaler``.
        static: The factor, if it never changes.
    """

    options: Mapping[str, Any]
    static: float | None = None

    @property
    def default_max_skips(self) -> int:
        """Number of skips in a row after which the scale is too small to be the cause."""
        start = self.options.get("init_scale", 2.0**16) / _SMALLEST_USEFUL_SCALE
        backoff = self.options.get("backoff_factor", 0.5)
        return max(8, math.ceil(math.log(start) / -math.log(backoff)))


def parse_loss_scale(loss_scale: Any) -> LossScale:
    """Check ``loss_scale`` as a user wrote it; a dict is copied.

    Raises:
        ConfigError: If it is not ``'dynamic'``, a number above 0, or a dict of ``GradScaler``
            arguments with values that torch accepts.
    """
    if isinstance(loss_scale, str) and loss_scale == _DYNAMIC:
        return LossScale({})
    if is_number(loss_scale):
        static = check_finite_number("loss_scale", loss_scale)
        return LossScale({"init_scale": static}, static)
    if isinstance(loss_scale, Mapping):
        return LossScale(_check_options(loss_scale))
    hint = did_you_mean(loss_scale, [_DYNAMIC]) if isinstance(loss_scale, str) else ""
    if isinstance(loss_scale, torch.dtype) or "float" in str(loss_scale):
        hint = f"; did you mean dtype={loss_scale!r}?"
    raise ConfigTypeError(
        f"loss_scale is {loss_scale!r}; it must be {_DYNAMIC!r}, a number (a factor that never "
        f"changes), or a dict of GradScaler arguments such as dict(init_scale=1024.0){hint or '.'}"
    )


def _check_options(given: Mapping[str, Any]) -> dict[str, Any]:
    check_keys("loss_scale", given, _OPTIONS)
    options = dict(given)
    for key in ("init_scale", "growth_factor", "backoff_factor"):
        if key in options:
            options[key] = check_finite_number(f"loss_scale {key}", options[key])
    if options.get("growth_factor", 2.0) <= 1:
        raise ConfigError(
            f"loss_scale growth_factor is {options['growth_factor']}; it must be > 1."
        )
    if options.get("backoff_factor", 0.5) >= 1:
        raise ConfigError(
            f"loss_scale backoff_factor is {options['backoff_factor']}; it must be < 1."
        )
    if "growth_interval" in options:
        check_count("loss_scale growth_interval", options["growth_interval"], least=1)
    if "enabled" in options:
        check_bool("loss_scale enabled", options["enabled"])
    return options


def build_scaler(scale: LossScale, device_type: str, *, use_fsdp: bool) -> Any:
    """Build torch's gradient scaler for a device.

    Raises:
        TorchVersionError: If this torch has no scaler for the device.
    """
    scaler_class = _sharded_scaler_class() if use_fsdp else _scaler_class(device_type)
    if "device" in inspect.signature(scaler_class).parameters:
        return scaler_class(device=device_type, **scale.options)
    if device_type == "cpu":
        raise TorchVersionError(
            f"{scaler_class.__name__} was asked for on cpu, which torch {torch.__version__} lacks; "
            "use dtype='bfloat16', which needs no scaler, or torch 2.4 or newer."
        )
    return scaler_class(**scale.options)


def _scaler_class(device_type: str) -> Any:
    device_module = getattr(torch, device_type, None)
    of_device = getattr(getattr(device_module, "amp", None), "GradScaler", None)
    general = getattr(torch.amp, "GradScaler", None)  # torch 2.3
    # torch.cuda.amp's and torch.cpu.amp's are deprecated; a backend's own knows its hardware.
    choices = (general, of_device) if device_type in {"cpu", "cuda"} else (of_device, general)
    for scaler_class in choices:
        if scaler_class is not None:
            return scaler_class
    raise TorchVersionError(
        f"a loss scaler was asked for on {device_type!r}, which torch {torch.__version__} lacks; "
        "use dtype='bfloat16', which needs no scaler, or torch 2.4 or newer."
    )


def _sharded_scaler_class() -> Any:
    # Imported late: torch.distributed.fsdp takes seconds to import, and few need it.
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # noqa: PLC0415

    return ShardedGradScaler


class LossScaling:
    """One optimizer with torch's gradient scaler.

    Args:
        scaler: Torch's, of any device, or the sharded one.
        optimizer: The optimizer.
        scale: The parsed ``loss_scale``.
        is_sharded: Whether the scaler is that of torch's first FSDP.

    Attributes:
        scaler: As given.
        scale_config: The parsed ``loss_scale``.
        last_loss: The loss of the last backward, without the scale, until a step that was not
            skipped.
    """

    def __init__(
        self, scaler: Any, optimizer: torch.optim.Optimizer, scale: LossScale, *, is_sharded: bool
    ) -> None:
        self.scaler = scaler
        self.scale_config = scale
        self.last_loss: Tensor | None = None
        self._optimizer = optimizer
        self._is_sharded = is_sharded
        self._is_unscaled = False
        self._is_stepping = False
        self._has_warned = False

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss that backward starts from."""
        if self._is_stepping:  # the last step raised; the scaler would reuse its overflow flags
            self.scaler.update(self.factor())
            self._is_unscaled = self._is_stepping = False
        self.last_loss = loss
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def factor(self) -> Tensor:
        """Return a copy of the present scale, 0-d.

        Raises:
            UnsupportedError: If there are gradients, though no loss was ever scaled.
        """
        scale = current_scale(self.scaler)
        if scale is None:  # no loss was scaled yet
            if have_gradient(self._optimizer):
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
        """Step the optimizer unless gradients overflowed.

        Args:
            kwargs: Arguments of ``optimizer.step``.

        Returns:
            ``(stepped, skipped)``: bools, or 0-d bool tensors for a fused optimizer.
        """
        if not self._is_sharded and not have_gradient(self._optimizer):
            self._warn_of_no_gradients()  # torch's scaler would fail: "No inf checks ..."
            return False, False
        if self._is_sharded and skips_in_kernel(self._optimizer) and not self._is_unscaled:
            self.unscale()  # where ranks agree on an overflow; left to step, they would not
        self._is_stepping = True
        stepped, skipped = _step(self.scaler, self._optimizer, kwargs)
        self.scaler.update(self.scale_config.static)
        self._is_unscaled = self._is_stepping = False
        if stepped is True:
            self.last_loss = None
        self.detach_last_loss()
        return stepped, skipped

    def detach_last_loss(self) -> None:
        """Release the graph of the last loss, once backward is done."""
        if self.last_loss is not None:
            self.last_loss = self.last_loss.detach()

    def _warn_of_no_gradients(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "No parameter of the optimizer has a gradient, so nothing was stepped: are all "
                "frozen, does the loss not depend on them, or was the optimizer built for another "
                "copy of the model?"
            )

    def load_state_dict(self, saved: object) -> None:
        """Load a scaler's saved state; a static scale of the configuration wins over it.

        Raises:
            ConfigError: If it is no scaler's state.
        """
        if not isinstance(saved, Mapping):
            raise ConfigTypeError(
                f"The state's {SCALER_KEY} is a {type(saved).__name__}; "
                "it must be what state_dict() of a wrapper returned."
            )
        own = self.scaler.state_dict()
        # A device's own scaler may save more keys, which a state of torch's does not have.
        state = {**{key: own[key] for key in own.keys() - _STATE_KEYS}, **saved}
        missing = sorted(own.keys() - state.keys())
        if missing:
            raise ConfigError(
                f"The state's {SCALER_KEY} lacks {', '.join(missing)}; "
                "it must be what state_dict() of a wrapper returned."
            )
        if self.scale_config.static is not None:
            state["scale"] = self.scale_config.static
        self.scaler.load_state_dict(state)


def unscales_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether ``step`` takes the scaler, as fused optimizers did before torch 2.0.

    Gradients that ``unscale_`` has already divided would be divided a second time.
    """
    return (
        skips_in_kernel(optimizer) and "grad_scaler" in inspect.signature(optimizer.step).parameters
    )


def step_fused_unless(is_bad: Tensor, optimizer: Any, kwargs: Mapping[str, Any]) -> None:
    """Step a fused optimizer, whose own kernel leaves the step out if ``is_bad``."""
    optimizer.found_inf = is_bad.float()
    try:
        optimizer.step(**kwargs)
    finally:
        del optimizer.found_inf


def _step(
    scaler: Any, optimizer: Any, kwargs: Mapping[str, Any]
) -> tuple[bool | Tensor, bool | Tensor]:
    if not skips_in_kernel(optimizer):
        stepped = _step_observed(scaler, optimizer, kwargs)
        return stepped, not stepped
    # A device's own scaler hands itself to step(), which torch's optimizers refuse since 2.0.
    is_torchs = type(scaler).step.__module__.startswith("torch.")
    can_step = is_torchs or unscales_by_itself(optimizer)
    if can_step and can_skip_in_kernel(scaler, optimizer) and not _lacks_momentum(optimizer):
        try:
            scaler.step(optimizer, **kwargs)
        except BaseException:
            # The scaler removes these after a step only, and would use them in the next.
            for name in ("grad_scale", "found_inf"):
                vars(optimizer).pop(name, None)
            raise
        overflow = found_overflow(scaler, optimizer)
        return ~overflow, overflow
    set_skips_in_kernel(optimizer, value=False)  # unscale and skip as for any other optimizer
    try:
        stepped = _step_observed(scaler, optimizer, kwargs)
    finally:
        set_skips_in_kernel(optimizer, value=True)
    return stepped, not stepped


def _step_observed(scaler: Any, optimizer: Any, kwargs: Mapping[str, Any]) -> bool:
    """Call ``scaler.step`` and return whether it called ``optimizer.step``.

    torch itself waits for the device to know whether to, so nothing more has to be read.
    """
    # Optimizer hooks would do from torch 2.0 on, but break the graph of a compiled step.
    is_called = False
    original = optimizer.step
    is_replaced = "step" in optimizer.__dict__  # by a scheduler or torch.compile

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_called
        is_called = True
        return original(*args, **kwargs)

    optimizer.step = step
    try:
        scaler.step(optimizer, **kwargs)
    finally:
        if is_replaced:
            optimizer.step = original
        else:
            del optimizer.step
    return is_called


def _lacks_momentum(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is torch's SGD before its first step with momentum.

    Its kernel leaves momentum uninitialized where it skips that step (torch 2.3 to 2.13).
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return False
    groups = [group["params"] for group in optimizer.param_groups if group["momentum"]]
    firsts = [next((one for one in params if one.grad is not None), None) for params in groups]
    state = optimizer.state
    return any(
        one is not None and state.get(one, {}).get("momentum_buffer") is None for one in firsts
    )
