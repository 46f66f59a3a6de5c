"""The optimizer wrapper for mixed precision."""

from collections.abc import Mapping
from typing import Any

import torch
from typing_extensions import override

from ._mixed_precision import MixedPrecision
from ._optim_wrapper import OptimWrapper


class AmpOptimWrapper(OptimWrapper):
    """Train in mixed precision, on any device that torch can autocast, the CPU included.

    ``optim_context`` autocasts the forward; it has ended when backward starts. With float16 the
    loss is scaled, and a step whose gradients overflow is left out; bfloat16 needs neither.

    Args:
        optimizer: A ``torch.optim.Optimizer`` over float32 parameters.
        loss_scale: ``'dynamic'`` (the default); a number, for a scale that never changes; or a
            dict of ``torch.amp.GradScaler`` arguments. Only float16 uses it.
        dtype: ``'float16'``, ``'bfloat16'``, either as a ``torch.dtype``; ``'auto'``: bfloat16
            where the device computes in it natively, else float16; or ``None`` (the default):
            torch's own choice for the device, which is float16 on CUDA, bfloat16 on the CPU.
        use_fsdp: Whether parameters are sharded by torch's first FSDP, whose ranks have to agree
            on an overflow. Models of ``fully_shard`` do not need it. Defaults to ``False``.
        accumulative_counts: As of ``OptimWrapper``.
        clip_grad: As of ``OptimWrapper``; clipping sees gradients without the loss scale.
        device_type: Such as ``'cuda'``. Defaults to that of the optimizer's first parameter, looked
            at once more when the first forward starts.

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
    ) -> None:
        super().__init__(optimizer, accumulative_counts, clip_grad)
        self._precision = MixedPrecision(
            optimizer,
            loss_scale=loss_scale,
            dtype=dtype,
            use_fsdp=use_fsdp,
            device_type=device_type,
            clips=clip_grad is not None,
        )

    @property
    def dtype(self) -> torch.dtype:
        """What the forward computes in, ``torch.float16`` or ``torch.bfloat16``."""
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
            "loss_scaler": scaler,
            **super()._describe(),
        }
