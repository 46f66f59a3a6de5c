"""NpuFusedLamb: Adam with a step in proportion to each tensor's norm."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ._arithmetic import add_scaled_
from ._checks import HyperParameters, check_betas, check_not_negative
from ._stack import Operands
from ._stacked_rule import AbstractStackedRule, Group, Scales, total_norm

_LARGEST_WEIGHT_NORM = 10  # of torch_npu, and of the LAMB that it follows


class NpuFusedLamb(AbstractStackedRule):
    r"""LAMB: ``torch_npu.optim.NpuFusedLamb`` on an NPU, a portable form elsewhere.

    For a parameter :math:`p` with gradient :math:`g`:

    .. math::
        g &\leftarrow g / \max(1, |g|_2)
            \text{ over all parameters, with use\_global\_grad\_norm} \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        u &= m / (\sqrt{v} + \epsilon) + \mathrm{weight\_decay} \cdot p \\
        r &= \min(|p|_2, 10) / |u|_2 \text{ over the tensor; 1 if a norm is zero, or with adam} \\
        p &\leftarrow p - \mathrm{lr} \cdot r \cdot u

    There is no bias correction. You et al., "Large Batch Optimization for Deep Learning: Training
    BERT in 76 minutes", 2020, https://arxiv.org/abs/1904.00962.

    ``torch_npu`` raises with use_global_grad_norm; the portable form computes what was meant.

    Args:
        params: Parameters, or dicts of parameter groups, as ``torch.optim`` takes them.
        lr: Learning rate; the portable form also takes a tensor.
        betas: Decay rates of the two moments.
        eps: Added to the denominator.
        weight_decay: Multiple of the parameter that is added to its update.
        adam: Keep the ratio :math:`r` at one.
        use_global_grad_norm: Divide the gradients by their norm over all groups if it exceeds one.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedLamb(torch.nn.Linear(2, 1).parameters(), lr=1e-3)
    """

    native_name = "NpuFusedLamb"
    hyper_parameters: ClassVar[HyperParameters] = {
        "lr": (1e-3, check_not_negative),
        "betas": ((0.9, 0.999), check_betas),
        "eps": (1e-6, check_not_negative),
        "weight_decay": (0, check_not_negative),
    }
    attributes: ClassVar[Mapping[str, Any]] = {"adam": False, "use_global_grad_norm": False}
    adam: bool
    use_global_grad_norm: bool
    takes_norms = True

    def gradient_scales(self) -> Scales:
        """Divide all gradients by their common norm, if that is asked for."""
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not (self.use_global_grad_norm and params):
            return {}
        scale = total_norm(p.grad for p in params).clamp(min=1).reciprocal()
        dtypes = {p.dtype for p in params}
        return {(i, dtype): scale for i in range(len(self.param_groups)) for dtype in dtypes}

    def update(self, operands: Operands, group: Group, step: int) -> None:
        """Make one step; the formula is in the docstring of the class."""
        del step
        p, gradient, state = operands
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = state["exp_avg_sq"].sqrt().add_(group["eps"])
        direction = torch.div(state["exp_avg"], root, out=root)
        if group["weight_decay"] != 0:
            direction.add_(p, alpha=group["weight_decay"])
        if self.adam:
            add_scaled_(p, direction, -group["lr"])
        else:
            p.sub_(direction.mul_(_trust_ratio(p, direction) * group["lr"]))

    def __getstate__(self) -> dict[str, Any]:
        kept = {"adam": self.adam, "use_global_grad_norm": self.use_global_grad_norm}
        return {**super().__getstate__(), **kept}


def _trust_ratio(p: Tensor, direction: Tensor) -> Tensor:
    """Return the ratio of each parameter in a stack, in a shape that broadcasts to the stack."""
    weight_norm, norm = (
        torch.linalg.vector_norm(each.reshape(len(p), -1), dim=1) for each in (p, direction)
    )
    weight_norm = weight_norm.clamp(max=_LARGEST_WEIGHT_NORM)
    is_zero = (weight_norm == 0) | (norm == 0)
    ratio = torch.where(is_zero, torch.ones_like(norm), weight_norm / norm)
    return ratio.reshape(-1, *[1] * (p.dim() - 1))
