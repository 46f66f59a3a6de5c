"""How far tensors of a compiled call are from those of an eager one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._config import VerifyConfig
from ._inputs import Named

# A tensor far smaller than the largest of its sort may be nothing but rounding: the gradient of a
# bias before a normalization, which is zero but for that.
_SMALL = 0.1
# Two calls of eager code differ by as much; the largest of few elements is uncertain.
_ANSWERS = 5.0
_ORDER = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Deviation:
    """The largest difference between a compiled and an eager tensor.

    Attributes:
        tensor: Which one, such as ``"the gradient of 'layer.weight'"``.
        value: Largest absolute difference of an element.
        allowed: What ``rtol`` and ``atol`` allow of it.
    """

    tensor: str
    value: float
    allowed: float

    @property
    def is_beyond(self) -> bool:
        """Whether it is more than what is allowed."""
        return not self.value <= self.allowed

    @property
    def ratio(self) -> float:
        """How many times what is allowed."""
        return self.value / self.allowed if self.allowed else float("inf") * bool(self.value)

    def __str__(self) -> str:
        return f"{self.tensor} deviates by {self.value:.2g}, {self.allowed:.2g} allowed"


@dataclass(frozen=True)
class Verified:
    """How far a region's compiled code was from its eager code.

    Attributes:
        num_calls: Training calls that were compared.
        tensor: What deviated most, measured by what is allowed; None if nothing was compared.
        deviation: The largest difference of an element of it.
        allowed: What ``rtol`` and ``atol`` allow of it.
        note: Why calls were not compared; else None.
    """

    num_calls: int = 0
    tensor: str | None = None
    deviation: float = 0.0
    allowed: float = 0.0
    note: str | None = None


def compare(
    eager: Sequence[Named],
    compiled: Sequence[Named],
    dtype: torch.dtype,
    config: VerifyConfig,
    shaken: Sequence[Named] = (),
) -> list[Deviation]:
    """Compare tensors of one sort, outputs or gradients, by their names.

    A tensor deviates if an element differs by more than ``atol + rtol * scale``, where ``scale``
    is its own largest element, or a tenth of the largest of all if that is more. Where eager code
    itself answers a change of its inputs by one rounding with more than that, the tensor is mostly
    rounding, and may differ by some times that answer.

    Args:
        eager: What eager code computed.
        compiled: What compiled code computed.
        dtype: The least precise type that takes part.
        config: The tolerances.
        shaken: What eager code computed of inputs that were moved by one rounding.
    """
    rtol, atol = config.tolerances(dtype)
    found, answers = dict(compiled), dict(shaken)
    scales = {name: _largest(tensor) for name, tensor in eager}
    floor = _SMALL * max(scales.values(), default=0.0)
    return [
        Deviation(
            name,
            _difference(tensor, found.get(name)),
            max(
                atol + rtol * max(scales[name], floor),
                _ANSWERS * _difference(tensor, answers.get(name, tensor)),
            ),
        )
        for name, tensor in eager
    ]


def least_precise(tensors: Sequence[Tensor], autocast: torch.dtype | None) -> torch.dtype:
    """Return the least precise floating-point type that takes part."""
    present = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    if autocast is not None:
        present.add(autocast)
    others = present.difference(_ORDER)
    if others:
        return next(iter(others))
    dtype = max(present or {torch.float32}, key=_ORDER.index)
    return torch.float16 if dtype == torch.float32 and _multiplies_roughly(tensors) else dtype


def _multiplies_roughly(tensors: Sequence[Tensor]) -> bool:
    # TensorFloat-32 keeps as many digits of what it multiplies as float16 does.
    return any(tensor.device.type == "cuda" for tensor in tensors) and _uses_tf32()


def _uses_tf32() -> bool:
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    # Where the newer switches are set, asking for the older ones is an error.
    if torch.__version__ >= "2.9":
        return "tf32" in (matmul.fp32_precision, cudnn.conv.fp32_precision)
    return bool(cudnn.allow_tf32 or matmul.allow_tf32)


def _largest(tensor: Tensor) -> float:
    # Infinities and their differences say nothing about a scale.
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    sizes = _comparable(tensor.detach()).abs()
    return float(torch.where(torch.isfinite(sizes), sizes, torch.zeros_like(sizes)).max())


def _difference(eager: Tensor, compiled: Tensor | None) -> float:
    if compiled is None or compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        return float("inf")
    if not eager.numel():
        return 0.0
    first, second = (_comparable(each.detach()) for each in (eager, compiled))
    is_same = (first == second) | (torch.isnan(first) & torch.isnan(second))
    differences = torch.where(is_same, torch.zeros_like(first.abs()), (first - second).abs())
    largest = float(differences.max())
    return float("inf") if largest != largest else largest  # noqa: PLR0124 - it is not a number


def _comparable(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_complex() or tensor.dtype == torch.float64 else tensor.float()
