"""NpuFusedLamb: Adam with a step in proportion to each tensor's norm."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ._arguments import check_betas, check_not_negative
from ._arithmetic import move_average, move_average_of_squares, prepare_gradient
from ._blockwise import AbstractBlockwiseOptimizer
from ._fused import adam_direction, fits
from ._norms import total_norm
from ._operands import Operands
from ._rules import Options, Spares, Step
from ._units import AbstractUnit

_LARGEST_WEIGHT_NORM = 10  # of torch_npu, and of the LAMB that it follows


class LambRule:
    """One step; the formula stands at ``NpuFusedLamb``. Operands are ``(n, elements)``."""

    def advance(self, operands: Operands, spares: Spares, options: Options) -> Tensor:
        """Update the moments; the direction goes to the first spare tensor.

        Returns:
            The squared norms of parameters and directions, ``(2, n, 1)``.
        """
        p, gradient, state = operands
        direction, spare, _ = spares
        gradient = prepare_gradient(gradient, p, 0, options["scale"], spare)
        beta1, beta2 = options["betas"]
        if fits(operands, options):
            adam_direction(gradient, state, options["betas"], options["eps"], direction)
        else:
            move_average(state["exp_avg"], gradient, beta1)
            move_average_of_squares(state["exp_avg_sq"], gradient, beta2)
            root = torch.sqrt(state["exp_avg_sq"], out=direction).add_(options["eps"])
            torch.div(state["exp_avg"], root, out=direction)
        if options["weight_decay"] != 0:
            direction.add_(p, alpha=options["weight_decay"])
        if options["adam"]:
            return p.new_zeros(2, len(p), 1)
        norms = [torch.linalg.vector_norm(t, dim=1, keepdim=True) for t in (p, direction)]
        return torch.stack(norms).square_()

    def conclude(self, sums: Tensor, shape: tuple[int, ...], options: Options) -> Step:
        """Scale the learning rate by the trust ratio of each tensor."""
        del shape
        if options["adam"]:
            return Step(1, options["lr"])
        weight_norm, direction_norm = sums.sum(-1, keepdim=True).sqrt_()
        weight_norm = weight_norm.clamp(max=_LARGEST_WEIGHT_NORM)
        ratio = torch.where(
            (weight_norm == 0) | (direction_norm == 0),
            torch.ones_like(weight_norm),
            weight_norm / direction_norm,
        )
        return Step(1, ratio * options["lr"])


class NpuFusedLamb(AbstractBlockwiseOptimizer):
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

    ``torch_npu`` raises with use_global_grad_norm; the portable form does what was meant.

    Args:
        params: Parameters, or dicts of parameter groups, as ``torch.optim`` takes them.
        lr: Learning rate; the portable form takes a tensor, too.
        betas: Decay rates of the two moments.
        eps: Added to the denominator.
        weight_decay: Multiple of the parameter that is added to its update.
        adam: Keep the ratio :math:`r` at one.
        use_global_grad_norm: Divide the gradients by their norm over all groups if it exceeds one.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.
        compiled: Compile the portable form's step with ``torch.compile``. ``torch_npu`` has none.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.
        TorchVersionError: If compiled, and this torch cannot compile.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedLamb(torch.nn.Linear(2, 1).parameters(), lr=1e-3)
    """

    native_name = "NpuFusedLamb"
    group_keys: ClassVar[tuple[str, ...]] = ("lr", "betas", "eps", "weight_decay")
    rule = LambRule()
    has_one_kernel = True
    settings = ("compiled", "adam", "use_global_grad_norm")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0,
        adam: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
        use_global_grad_norm: bool = False,  # noqa: FBT001, FBT002
        *,
        strict: bool | None = None,  # noqa: ARG002 - read before, when the object is made
        compiled: bool = False,
    ) -> None:
        self.adam = adam
        self.use_global_grad_norm = use_global_grad_norm
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, compiled=compiled)

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Check ``lr``, ``eps`` and ``weight_decay`` >= 0 and 0 <= ``betas`` < 1.

        Raises:
            ConfigError: If a value is out of range.
        """
        name = type(self).__name__
        for key in ("lr", "eps", "weight_decay"):
            check_not_negative(name, key, group[key])
        check_betas(name, group["betas"])

    def state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the two moments."""
        del group
        return "exp_avg", "exp_avg_sq"

    def options(self, group: Mapping[str, Any], step: int) -> Options:
        """Give the group's hyper-parameters, and whether the ratio is kept at one."""
        del step
        return {**{key: group[key] for key in self.group_keys}, "adam": self.adam}

    def gradient_scales(
        self, units: Sequence[Sequence[AbstractUnit]]
    ) -> list[Mapping[torch.dtype, Tensor]]:
        """Divide all gradients by their common norm, if that is asked for."""
        all_units = [unit for group in units for unit in group]
        if not (self.use_global_grad_norm and all_units):
            return super().gradient_scales(units)
        scale = total_norm(all_units).clamp(min=1).reciprocal()
        return [{unit.dtype: scale for unit in group} for group in units]
