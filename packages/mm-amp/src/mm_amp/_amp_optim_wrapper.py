"""The optimizer wrapper for mixed precision."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from ._loss_scaling import LossScaling
from ._mixed_precision import MixedPrecision
from ._optim_wrapper import OptimWrapper

if TYPE_CHECKING:
    from ._overflow_locator import OverflowLocator
    from ._skipped_step import SkippedStep


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
        device_type: Such as ``'cuda'``. Defaults to that of the optimizer's first parameter, looked
            at once more when the first forward starts.
        fp32_modules: Glob patterns on names of modules that stay in float32, such as
            ``['head', '*.norm']``. They become islands, see ``add_fp32_islands``, in each model
            given to ``initialize_count_status`` or ``optim_context``, where a pattern that matches
            nothing raises. Defaults to none.
        enabled: ``False`` is the same as ``dtype='float32'``. Defaults to ``True``.
        max_skips: With a loss scaler: raise ``NonFiniteError`` after so many skipped steps in a
            row; it names the loss, the layer and remedies. Defaults to ``None``: as many as make a
            dynamic loss scale too small to be the cause, 32 for torch's default scale. Each
            skipped step is located and logged, at level INFO while the scale can adapt, else
            WARNING; many of them, only some. Without a scaler: as of ``OptimWrapper``.

    Raises:
        ConfigError: If an argument has a value that cannot work, or a parameter to be trained is
            stored in float16 and a loss scaler is needed.
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

    _precision: MixedPrecision

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
        self._precision = MixedPrecision(
            optimizer,
            loss_scale=loss_scale,
            dtype=dtype,
            use_fsdp=use_fsdp,
            device_type=device_type,
            fp32_modules=fp32_modules,
            enabled=enabled,
            clips=clip_grad is not None,
        )
        self._max_skips = max_skips
        self._locator: OverflowLocator | None = None  # many runs never need one
        self._skips.listeners = [self._locate]

    def _locate(self, step: "SkippedStep") -> None:
        if self._guard is not None and self._precision.scaling is None:
            self._guard(step)
            return
        if self._locator is None:
            self._locator = self._build_locator()
        scaling = self._precision.scaling
        loss = None if scaling is None else scaling.last_loss
        self._locator.loss = None if loss is None else loss.detach()
        self._locator(step)

    def _build_locator(self) -> "OverflowLocator":
        from ._overflow_locator import OverflowLocator, enough_skips  # noqa: PLC0415

        scale = self._precision.asked_scale
        return OverflowLocator(
            self._max_skips or enough_skips(scale.options),
            is_adaptive=scale.static is None,
            num_forwards=self.accumulative_counts,
        )

    @override
    def _clip_gradients(self, scaling: LossScaling | None = None) -> Tensor | None:
        if self._skips.num_in_a_row and self._locator is not None:
            self._locator.look(self.optimizer)  # clipping may spread a NaN, or hide it
        return super()._clip_gradients(scaling)

    @property
    def dtype(self) -> torch.dtype:
        """What the forward computes in: float16, bfloat16, or float32 where it is not mixed."""
        return self._precision.dtype

    @property
    def device_type(self) -> str:
        """The kind of device that is autocast."""
        return self._precision.device_type

    @property
    def loss_scaler(self) -> Any:
        """The torch ``GradScaler``, or ``None`` where the loss is not scaled."""
        return self._precision.scaler

    @override
    def _describe(self) -> dict[str, object]:
        scaler = type(self.loss_scaler).__name__ if self.loss_scaler is not None else None
        return {
            "dtype": self.dtype,
            "device_type": self.device_type,
            "fp32_modules": self._precision.fp32_modules,
            "loss_scaler": scaler,
            **super()._describe(),
        }
