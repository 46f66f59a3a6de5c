"""Optimizer wrapper for mixed precision."""

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from typing_extensions import override

from mm_amp._checks import check_bool
from mm_amp._precision._autocast import check_autocast, first_device, parse_device, resolve_dtype
from mm_amp._wrapper._optim_wrapper import OptimWrapper

if TYPE_CHECKING:
    from mm_amp._precision._islands import Fp32Islands

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
        use_fsdp: Accepted for MMEngine's configs, and without effect: models of ``fully_shard``
            need no flag, and torch's first FSDP is refused at the first forward.
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
            32, after which a dynamic loss scale is too small to be the cause. Skipped steps are
            located and logged, at level INFO while the scale can adapt, else WARNING. Without a
            scaler: as of ``OptimWrapper``.

    Attributes:
        dtype: Dtype of the forward: float16, bfloat16, or float32 where it is not mixed.
        device_type: Type of the device that is autocast.
        fp32_modules: Patterns of the modules that stay in float32.

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

    _shown = ("dtype", "device_type", "fp32_modules", "loss_scaler")

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        loss_scale: str | float | Mapping[str, Any] = "dynamic",
        dtype: str | torch.dtype | None = None,
        use_fsdp: bool = False,  # noqa: ARG002, FBT001, FBT002 - MMEngine's signature
        *,
        accumulative_counts: int = 1,
        clip_grad: Mapping[str, Any] | None = None,
        device_type: str | None = None,
        fp32_modules: str | Iterable[str] = (),
        enabled: bool = True,
        max_skips: int | None = None,
    ) -> None:
        super().__init__(optimizer, accumulative_counts, clip_grad, max_skips=max_skips)
        self._loss_scale: tuple[dict[str, Any], float | None] = {}, None
        if loss_scale != "dynamic":
            from mm_amp._scaling._loss_scaling import parse_loss_scale  # noqa: PLC0415 - rarely used

            self._loss_scale = parse_loss_scale(loss_scale)
        is_mixed = check_bool("enabled", enabled) and dtype not in {"float32", torch.float32}
        self._asked_dtype = dtype if is_mixed else torch.float32
        self.fp32_modules: tuple[str, ...] = ()
        if fp32_modules != ():
            from mm_amp._names import parse_patterns  # noqa: PLC0415 - rarely used

            self.fp32_modules = parse_patterns("fp32_modules", fp32_modules)
        self._islands: dict[nn.Module, Fp32Islands] = {}
        self._is_device_given = device_type is not None
        self._resolve(parse_device(device_type) if device_type else first_device(optimizer))

    def _resolve(self, device: torch.device) -> None:
        """Choose dtype and loss scaler for a device, so that mistakes show at construction."""
        self.device_type = device.type
        self.dtype, self._autocast, self._scaling = torch.float32, None, None
        if self._asked_dtype == torch.float32:
            return
        self.dtype = resolve_dtype(self._asked_dtype, device)
        check_autocast(device.type, self.dtype)
        self._autocast = partial(torch.autocast, device.type, dtype=self.dtype)
        options, static = self._loss_scale
        if self.dtype == torch.float16 and options.get("enabled", True):
            from mm_amp._scaling._loss_scaling import LossScaling  # noqa: PLC0415 - only float16
            from mm_amp._scaling._skips import SkipLog  # noqa: PLC0415 - the same

            self._scaling = LossScaling(self.optimizer, device.type, options, static)
            self._skips = self._skips or SkipLog()

    @override
    def _prepare(self, model: Any) -> None:
        super()._prepare(model)
        device = first_device(self.optimizer)
        if device.type != self.device_type and not self._is_device_given:
            state = self.loss_scaler and self.loss_scaler.state_dict()
            self._resolve(device)
            if state and self._scaling is not None:
                self._scaling.load_state_dict(state)
            for islands in self._islands.values():  # they know the device
                islands.undo()
            self._islands.clear()
            _logger.info(
                "The parameters moved since this wrapper was built: autocast to %s on %s.",
                self.dtype,
                self.device_type,
            )
        self._add_islands(model)

    def _add_islands(self, model: Any) -> None:
        if self.fp32_modules and model not in self._islands:
            from mm_amp._precision._islands import add_fp32_islands  # noqa: PLC0415 - rarely used

            self._islands[model] = add_fp32_islands(
                model, self.fp32_modules, device_type=self.device_type
            )

    @override
    def initialize_count_status(self, model: nn.Module, init_counts: int, max_counts: int) -> None:
        super().initialize_count_status(model, init_counts, max_counts)
        self._add_islands(model)

    @property
    def loss_scaler(self) -> Any:
        """The torch ``GradScaler``, or ``None`` where the loss is not scaled."""
        return None if self._scaling is None else self._scaling.scaler
