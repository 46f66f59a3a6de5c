"""Portable optimizers that are torch's own, with its fused kernel for the CPU where it is right."""

import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from mm_npu._availability import torch_release

from ._checks import check_dense_gradients
from ._npu_fused import AbstractNpuFused

_NO_STATE: Mapping[str, Any] = {}
_HAS_FUSED_KERNELS = torch_release() >= (2, 4)  # for the CPU, of all three


class AbstractTorchRule(AbstractNpuFused):
    """An optimizer whose portable form is torch's class of the same rule.

    A concrete class derives from this one and then from torch's, which ``torch_class`` names.
    """

    torch_class: ClassVar[type[Optimizer]]
    # Those that torch's fused kernel is right for.
    fused_dtypes: ClassVar[Collection[torch.dtype]] = (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
    )

    def initialize(self, params: Iterable[Any], group: dict[str, Any]) -> None:
        """Call the constructor of torch's class."""
        self.torch_class.__init__(self, params, **group)

    def update_parameters(self) -> None:
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            check_dense_gradients(type(self).__name__, group["params"])
            self._choose_kernel(group)
        # Without what torch wraps around it: step hooks run around our own step already.
        inspect.unwrap(self.torch_class.step)(self)
        if _HAS_FUSED_KERNELS:
            self._mark_changed()

    def _mark_changed(self) -> None:
        """Tell autograd that parameters changed, which the fused kernels leave out."""
        fused = [group["params"] for group in self.param_groups if group["fused"]]
        changed = [p for params in fused for p in params if p.grad is not None]
        if torch_release() >= (2, 6):
            torch.autograd.graph.increment_version(changed)
            return
        for p in changed:
            torch.autograd.graph.increment_version(p)

    def _choose_kernel(self, group: dict[str, Any]) -> None:
        """Switch torch's fused kernel on for a group where it is right; else torch chooses."""
        if "fused" in group:  # not in torch.optim.AdamW of 1.13, and in SGD before 2.3
            trained = [p for p in group["params"] if p.requires_grad]
            is_right = _HAS_FUSED_KERNELS and self.can_fuse(trained)
            group["fused"] = True if is_right else None

    def can_fuse(self, params: Collection[Tensor]) -> bool:
        """Return whether torch's fused kernel for the CPU makes the same update of ``params``."""
        for kind, dtype, device_type in {(type(p), p.dtype, p.device.type) for p in params}:
            is_plain = kind in {Tensor, torch.nn.Parameter}
            if not is_plain or dtype not in self.fused_dtypes or device_type != "cpu":
                return False
        # The kernel walks through memory, and mixes elements up where layouts differ.
        return all(map(Tensor.is_contiguous, self._tensors_of(params))) or all(
            self._is_laid_alike(p) for p in params
        )

    def _tensors_of(self, params: Collection[Tensor]) -> list[Tensor]:
        """Return parameters, their gradients and their states."""
        entries = [self.state.get(p, _NO_STATE) for p in params]
        states = [v for entry in entries for v in entry.values() if isinstance(v, Tensor)]
        return [*params, *[p.grad for p in params if p.grad is not None], *states]

    def _is_laid_alike(self, p: Tensor) -> bool:
        tensors = self._tensors_of([p])
        return all(map(Tensor.is_contiguous, tensors)) or all(
            tensor.shape != p.shape or _is_channels_last(tensor) for tensor in tensors
        )


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
