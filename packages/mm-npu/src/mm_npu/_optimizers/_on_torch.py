"""What the optimizers that are torch's own share: the fused kernel where torch has one."""

import inspect
from collections.abc import Callable, Container
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ._arguments import check_dense_gradients
from ._named import AbstractNamedOptimizer
from ._operands import is_dense


class AbstractTorchOptimizer(AbstractNamedOptimizer):
    """An optimizer of torch under the name of ``torch_npu``'s.

    A concrete class derives from this one and then from torch's, and sets ``plain_step``.
    """

    plain_step: Callable[..., Any]
    # Those that torch's fused kernel is right for.
    fused_dtypes: ClassVar[Container[torch.dtype]] = (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
    )

    def update_parameters(self) -> None:
        """Update the parameters that have a gradient.

        Raises:
            ConfigError: If a gradient is sparse.
        """
        for index, group in enumerate(self.param_groups):
            self.look_at_gradients(index, group)
        type(self).plain_step(self)

    def look_at_gradients(self, index: int, group: dict[str, Any]) -> None:
        """Check the gradients of a group, and choose its kernel, until each parameter has had one.

        Later steps save the time: autograd keeps the layout of a gradient, and torch's fused
        kernels refuse sparse ones themselves.
        """
        params, met = group["params"], self.__dict__.setdefault("_met", {})
        if met.get(index) == len(params):
            return
        check_dense_gradients(type(self).__name__, params)
        self.choose_kernel(group)
        is_settled = group.get("fused") or not all(map(self._may_fuse, params))
        met[index] = sum(p.grad is not None for p in params) if is_settled else 0

    def choose_kernel(self, group: dict[str, Any]) -> None:
        """Switch torch's fused kernel on for a group, where it exists for the CPU and is right.

        Elsewhere torch chooses between multi-tensor and per-tensor kernels, as ever.
        """
        if "fused" in group:  # not in torch.optim.AdamW of 1.13, and in SGD before 2.4
            can_fuse = all(self._may_fuse(p) and self._is_laid_alike(p) for p in group["params"])
            group["fused"] = True if can_fuse else None

    def _may_fuse(self, p: Tensor) -> bool:
        return (
            hasattr(torch, "_fused_sgd_")
            and p.device.type == "cpu"
            and p.dtype in self.fused_dtypes
            and type(p) in {Tensor, torch.nn.Parameter}
            and is_dense(p)
        )

    def _is_laid_alike(self, p: Tensor) -> bool:
        # The kernels walk through memory, and mix elements up where parameter, gradient and state
        # are not laid out alike.
        partners = [*self.state.get(p, {}).values(), p.grad]
        return all(
            _has_strides_of(p, partner)
            for partner in partners
            if isinstance(partner, Tensor) and partner.shape == p.shape
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with hyper-parameters of their own; see ``torch.optim.Optimizer``.

        Raises:
            ConfigError: If a hyper-parameter is out of range, or a parameter is not real.
        """
        super().add_param_group(param_group)
        self.choose_kernel(self.param_groups[-1])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class, of ``torch_npu``'s class of this name, or of torch's twin.

        Args:
            state_dict: What ``state_dict`` of one of them gave. Not changed.

        Raises:
            ConfigError: If it comes from an optimizer that computes something else.
        """
        super().load_state_dict(state_dict)
        self.__dict__.pop("_met", None)
        for group in self.param_groups:
            self.choose_kernel(group)


def plain_step_of(optimizer: type[Optimizer]) -> Callable[..., Any]:
    """Return ``step`` as ``optimizer`` defines it, without what torch wraps around it.

    The wrappers run the step hooks and set the gradient mode. Our own ``step`` has them around it
    already: the hooks would run twice.
    """
    step: Callable[..., Any] = inspect.unwrap(optimizer.step)
    return step


def _has_strides_of(p: Tensor, tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    strides = zip(tensor.stride(), p.stride(), p.shape, strict=True)
    return all(own == other or size == 1 for own, other, size in strides)
