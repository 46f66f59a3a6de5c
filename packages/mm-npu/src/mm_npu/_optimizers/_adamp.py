"""NpuFusedAdamP: Adam that does not grow the norm of scale-invariant weights."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from ._arithmetic import add_scaled_
from ._checks import HyperParameters, accept, check_betas, check_not_negative
from ._stack import Operands
from ._stacked_rule import AbstractStackedRule, Group


class NpuFusedAdamP(AbstractStackedRule):
    r"""AdamP: ``torch_npu.optim.NpuFusedAdamP`` on an NPU, a portable form elsewhere.

    For a parameter :math:`p` with gradient :math:`g` at step :math:`t = 1, 2, ...`:

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        u &= \bar m / (\sqrt{v} / \sqrt{1 - \beta_2^t} + \epsilon), \quad
            \bar m = \beta_1 m + (1 - \beta_1) g \text{ with nesterov, else } m \\
        u &\leftarrow u - n \langle n, u \rangle, \quad n = p / (|p|_2 + \epsilon), \quad
            \text{if projected} \\
        p &\leftarrow p \, (1 - \mathrm{lr} \cdot \mathrm{weight\_decay} \cdot r) \\
        p &\leftarrow p - \frac{\mathrm{lr}}{1 - \beta_1^t} \, u

    A parameter of two dimensions or more is projected channel by channel (along its first
    dimension), if in every channel the cosine of :math:`g` and :math:`p` is smaller than
    ``delta`` divided by the root of the channel's size; else as a whole, if that holds for the
    whole. Then :math:`r` is ``wd_ratio``, and 1 otherwise. Heo et al., "AdamP: Slowing Down the
    Slowdown for Momentum Optimizers on Scale-invariant Weights", 2021,
    https://arxiv.org/abs/2006.08217.

    ``torch_npu`` checks no argument of this one; the portable form does.

    Args:
        params: Parameters, or dicts of parameter groups, as ``torch.optim`` takes them.
        lr: Learning rate; the portable form also takes a tensor.
        betas: Decay rates of the two moments.
        eps: Added to the denominator, and to the norms.
        weight_decay: Fraction of ``lr`` by which weights shrink in each step.
        delta: Threshold of the cosine.
        wd_ratio: Part of the weight decay that applies to projected parameters.
        nesterov: Look ahead by one step of momentum.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedAdamP(torch.nn.Linear(2, 1).parameters(), weight_decay=1e-2)
    """

    native_name = "NpuFusedAdamP"
    hyper_parameters: ClassVar[HyperParameters] = {
        "lr": (1e-3, check_not_negative),
        "betas": ((0.9, 0.999), check_betas),
        "eps": (1e-8, check_not_negative),
        "weight_decay": (0, check_not_negative),
        "delta": (0.1, check_not_negative),
        "wd_ratio": (0.1, check_not_negative),
        "nesterov": (False, accept),
    }
    takes_norms = True

    def update(self, operands: Operands, group: Group, step: int) -> None:
        """Make one step; the formula is in the docstring of the class."""
        p, gradient, state = operands
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"]
        mean.lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = state["exp_avg_sq"].sqrt().div_((1 - beta2**step) ** 0.5).add_(group["eps"])
        if group["nesterov"]:
            mean = mean.lerp(gradient, 1 - beta1)
        direction = torch.div(mean, root, out=root)
        rate, decay = group["lr"] / (1 - beta1**step), group["lr"] * group["weight_decay"]
        if p.dim() > 2:
            p.mul_(_keep(p, gradient, direction, group, (rate, decay)))
        else:
            p.mul_(1 - decay)
        add_scaled_(p, direction, -rate)


def _keep(
    p: Tensor, gradient: Tensor, direction: Tensor, group: Group, factors: tuple[Any, Any]
) -> Tensor:
    """Return the factor of each parameter in a stack: its weight decay and its projection.

    The projection ``u - n <n, u>`` with ``n = p / (|p| + eps)`` only adds a multiple of ``p``.
    """
    rate, decay = factors
    dims = tuple(range(2, p.dim()))
    sums = torch.stack(
        [
            (one * other).sum(dims, keepdim=True)
            for one, other in ((p, gradient), (p, direction), (p, p), (gradient, gradient))
        ]
    )
    channels, size = p.shape[1], p[0, 0].numel()
    by_channel, use_channel = _project(sums, size, group)
    by_layer, use_layer = _project(sums.sum(2, keepdim=True), channels * size, group)
    zero, one = torch.zeros_like(by_layer), torch.ones_like(by_layer)
    along = torch.where(use_channel, by_channel, torch.where(use_layer, by_layer, zero))
    ratio = torch.where(use_channel | use_layer, group["wd_ratio"] * one, one)
    keep: Tensor = 1 - ratio * decay + along * rate
    return keep


def _project(sums: Tensor, size: int, group: Group) -> tuple[Tensor, Tensor]:
    """Return the direction's part along each row of parameters, and whether to take it out."""
    p_gradient, p_direction, p_square, gradient_square = sums
    p_norm = p_square.sqrt() + group["eps"]
    cosine = p_gradient.abs() / (p_norm * (gradient_square.sqrt() + group["eps"]))
    is_orthogonal = cosine.amax(1, keepdim=True) < group["delta"] / size**0.5
    return p_direction / p_norm.square(), is_orthogonal
