"""Optimizer wrapper for mixed precision."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from mm_amp._checks import check_bool
from mm_amp._errors import TorchVersionError
from mm_amp._gradients._norms import local_norms
from mm_amp._model._parameters import (
    check_no_half_parameters,
    first_device,
    first_fsdp_modules,
    parameters_of,
)
from mm_amp._precision._autocast import check_autocast, parse_device, resolve_dtype
from mm_amp._scaling._loss_scaling import (
    LossScaling,
    build_scaler,
    parse_loss_scale,
    unscales_by_itself,
)
from mm_amp._scaling._skips import SkippedStep
from mm_amp._wrapper._optim_wrapper import NO_CONTEXT, OptimWrapper

if TYPE_CHECKING:
    from mm_amp._precision._islands import WrapperIslands

_logger = logging.getLogger(__name__)


class AmpOptimWrapper(OptimWrapper):
    """Train in mixed precision, on any device that torch can autocast, the CPU included.

    ``optim_context`` autocasts the forward; it has ended when backward starts. With float16 the
    loss is scaled, and a step whose gradients overflow is left out; bfloat16 needs neither.

    Args:
        optimizer: A ``torch.optim.Optimizer`` over float32 parameters.
        loss_scale: ``'dynamic'`` (the default); a number, for a scale that never changes; or a
            dict of ``torch.amp.GradScaler`` arguments. Only float16 uses it.
        dtype: ``'float16'``, ``'bfloat16'``, ``'float32'`` (which computes in full precision), any
            of them as a ``torch.dtype``; ``'auto'``: bfloat16 where the device computes in it
            natively, else float16; or ``None`` (the default): torch's own choice for the device,
            which is float16 on CUDA, bfloat16 on the CPU.
        use_fsdp: Whether parameters are sharded by torch's first FSDP, whose ranks have to agree
            on an overflow. Models of ``fully_shard`` do not need it. Defaults to ``False``.
        accumulative_counts: As of ``OptimWrapper``.
        clip_grad: As of ``OptimWrapper``; clipping sees gradients without the loss scale.
        device_type: Such as ``'cuda'``. Defaults to that of the optimizer's first parameter,
            checked once more when the first forward starts.
        fp32_modules: Glob patterns on names of modules that stay in float32, such as
            ``['head', '*.norm']``. They become islands, see ``add_fp32_islands``, in each model
            given to ``initialize_count_status`` or ``optim_context``, where a pattern that matches
            nothing raises. Defaults to none.
        enabled: ``False`` is the same as ``dtype='float32'``. Defaults to ``True``.
        max_skips: With a loss scaler: number of skipped steps in a row that raises
            ``NonFiniteError``, which names the loss, the layer and remedies. Defaults to ``None``:
            as many as make a dynamic loss scale too small to be the cause, 32 for torch's default
            scale. Skipped steps are located and logged, at level INFO while the scale can adapt,
            else WARNING. Without a scaler: as of ``OptimWrapper``.

    Raises:
        ConfigError: If an argument has an invalid value, or a parameter to be trained is stored in
            float16 and a loss scaler is needed.
        TorchVersionError: If a newer torch could do what is asked.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> wrapper = AmpOptimWrapper(optimizer, dtype="bfloat16")
        >>> with wrapper.optim_context(model):
        ...     output = model(torch.ones(2, 4))
        >>> output.dtype
        torch.bfloat16
        >>> wrapper.update_params(output.float().square().mean()).stepped
        True
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        loss_scale: str | float | Mapping[str, Any] = "dynamic",
        dtype: str | torch.dtype | None = None,
        use_fsdp: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        *,
        accumulative_counts: int = 1,
        clip_grad: Mapping[str, Any] | None = None,
        device_type: str | None = None,
        fp32_modules: str | Iterable[str] = (),
        enabled: bool = True,
        max_skips: int | None = None,
    ) -> None:
        super().__init__(optimizer, accumulative_counts, clip_grad, max_skips=max_skips)
        self._loss_scale = parse_loss_scale(loss_scale)
        is_mixed = check_bool("enabled", enabled) and dtype not in {"float32", torch.float32}
        self._asked_dtype = dtype if is_mixed else torch.float32
        self._use_fsdp = use_fsdp
        self._islands = _build_islands(fp32_modules)
        self._is_device_given = device_type is not None
        self._has_run_forward = False
        self._norms: Tensor | None = None  # before clipping, while steps are skipped
        self._resolve(parse_device(device_type) if device_type else first_device(optimizer))

    def _resolve(self, device: torch.device) -> None:
        """Choose dtype and loss scaler for a device, so that mistakes show at construction."""
        self._device_type = device.type
        self._scaling = None
        self._dtype = torch.float32
        if self._asked_dtype != torch.float32:
            self._dtype = resolve_dtype(self._asked_dtype, device)
            check_autocast(device.type, self._dtype)
        if self._dtype == torch.float16:
            self._scaling = self._build_scaling()

    def _build_scaling(self) -> LossScaling | None:
        scaler = build_scaler(self._loss_scale, self._device_type, use_fsdp=self._use_fsdp)
        if not scaler.is_enabled():
            return None
        if not self._use_fsdp:  # the sharded scaler takes float16 gradients
            check_no_half_parameters(self.optimizer)
        if self._clipper is not None and unscales_by_itself(self.optimizer):
            raise TorchVersionError(
                f"clip_grad was asked for with a fused {type(self.optimizer).__name__} and a "
                f"loss scaler, which torch {torch.__version__} cannot combine; "
                "use fused=False, dtype='bfloat16', or torch 2.0 or newer."
            )
        return LossScaling(scaler, self.optimizer, self._loss_scale, is_sharded=self._use_fsdp)

    @override
    def _forward_context(self, model: Any) -> AbstractContextManager[object]:
        if not self._has_run_forward:
            self._check_model(model)
        if self._islands is not None:
            self._islands.add_to(model, self._device_type)
        if self._dtype == torch.float32:
            return NO_CONTEXT
        return torch.autocast(self._device_type, dtype=self._dtype)

    def _check_model(self, model: Any) -> None:
        """Resolve again if the parameters moved, or the model is one of torch's first FSDP."""
        self._has_run_forward = True
        device = first_device(self.optimizer)
        has_moved = not self._is_device_given and device.type != self._device_type
        is_sharded = not self._use_fsdp and bool(first_fsdp_modules(model))
        if not has_moved and not (is_sharded and self._scaling is not None):
            return
        self._use_fsdp = self._use_fsdp or is_sharded
        before, state = self._scaling, self.loss_scaler and self.loss_scaler.state_dict()
        self._resolve(device if has_moved else torch.device(self._device_type))
        if before is not None and self._scaling is not None:
            self._scaling.load_state_dict(state)
        if has_moved:
            if self._islands is not None:
                self._islands.undo()  # they know the device; the forward makes them again
            _logger.info(
                "The parameters moved since this wrapper was built: autocast to %s on %s.",
                self._dtype,
                self._device_type,
            )

    @override
    def initialize_count_status(self, model: nn.Module, init_counts: int, max_counts: int) -> None:
        super().initialize_count_status(model, init_counts, max_counts)
        if self._islands is not None:
            self._islands.add_to(model, self._device_type)

    @override
    def _finish_gradients(self) -> Tensor | None:
        self._norms = None
        if self._skips.num_in_a_row and self._scaling is not None and self._clipper is not None:
            # Clipping may spread a NaN, or hide it.
            self._norms = local_norms(parameters_of(self.optimizer))
        return super()._finish_gradients()

    @override
    def _report_skip(self, step: SkippedStep) -> None:
        if self._scaling is None:
            super()._report_skip(step)
            return
        if self._locator is None:
            guard, scale = self._guard, self._loss_scale
            self._locator = self._build_locator(
                scale.default_max_skips if guard is None else guard.max_skips,
                is_adaptive=scale.static is None,
            )
        self._locator.report(step, self._norms, self._scaling.last_loss)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the forward: float16, bfloat16, or float32 where it is not mixed."""
        return self._dtype

    @property
    def device_type(self) -> str:
        """Type of the device that is autocast."""
        return self._device_type

    @property
    def loss_scaler(self) -> Any:
        """The torch ``GradScaler``, or ``None`` where the loss is not scaled."""
        return None if self._scaling is None else self._scaling.scaler

    @override
    def _describe(self) -> dict[str, object]:
        scaler = type(self.loss_scaler).__name__ if self.loss_scaler is not None else None
        return {
            "dtype": self._dtype,
            "device_type": self._device_type,
            "fp32_modules": () if self._islands is None else self._islands.patterns,
            "loss_scaler": scaler,
            **super()._describe(),
        }


def _build_islands(patterns: str | Iterable[str]) -> "WrapperIslands | None":
    if patterns == ():
        return None
    from mm_amp._precision._islands import WrapperIslands  # noqa: PLC0415 - most runs have none

    return WrapperIslands(patterns)
