"""NpuFusedAdadelta: steps scaled by running averages of gradients and of earlier steps."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from ._arguments import check_at_most_one, check_not_negative
from ._arithmetic import add_scaled, move_average_of_squares, prepare_gradient
from ._blockwise import AbstractBlockwiseOptimizer
from ._operands import Operands
from ._rules import Options, Spares


def update(operands: Operands, spares: Spares, options: Options) -> None:
    """Make one step; the formula stands at the class."""
    p, gradient, state = operands
    rho, eps = options["rho"], options["eps"]
    first, second, third = spares
    gradient = prepare_gradient(gradient, p, options["weight_decay"], options["scale"], first)
    move_average_of_squares(state["square_avg"], gradient, rho)
    # Both under one root: half of the most costly operation.
    square = torch.add(state["square_avg"], eps, out=second)
    delta = torch.add(state["acc_delta"], eps, out=third).div_(square).sqrt_().mul_(gradient)
    move_average_of_squares(state["acc_delta"], delta, rho)
    add_scaled(p, delta, -options["lr"], delta)


class NpuFusedAdadelta(AbstractBlockwiseOptimizer):
    r"""Adadelta: ``torch_npu.optim.NpuFusedAdadelta`` on an NPU, a portable form elsewhere.

    For a parameter :math:`p` with gradient :math:`g`:

    .. math::
        g &\leftarrow g + \mathrm{weight\_decay} \cdot p \\
        s &\leftarrow \rho s + (1 - \rho) g^2 \\
        d &= \sqrt{a + \epsilon} / \sqrt{s + \epsilon} \cdot g \\
        a &\leftarrow \rho a + (1 - \rho) d^2 \\
        p &\leftarrow p - \mathrm{lr} \cdot d

    Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012, https://arxiv.org/abs/1212.5701. The
    same as ``torch.optim.Adadelta``.

    Args:
        params: Parameters, or dicts of parameter groups, as ``torch.optim`` takes them.
        lr: Learning rate; the portable form takes a tensor, too.
        rho: Decay rate of both running averages.
        eps: Added under both roots.
        weight_decay: Multiple of the parameter that is added to its gradient.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.
        compiled: Compile the portable form's step with ``torch.compile``. ``torch_npu`` has none.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.
        TorchVersionError: If compiled, and this torch cannot compile.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedAdadelta(torch.nn.Linear(2, 1).parameters(), lr=1.0)
    """

    native_name = "NpuFusedAdadelta"
    torch_twin = "torch.optim.Adadelta"
    group_keys: ClassVar[tuple[str, ...]] = ("lr", "rho", "eps", "weight_decay")
    rule = staticmethod(update)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        *,
        strict: bool | None = None,  # noqa: ARG002 - read before, when the object is made
        compiled: bool = False,
    ) -> None:
        defaults = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, compiled=compiled)

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Check ``lr``, ``eps`` and ``weight_decay`` >= 0 and 0 <= ``rho`` <= 1.

        Raises:
            ConfigError: If a value is out of range.
        """
        name = type(self).__name__
        for key in ("lr", "eps", "weight_decay"):
            check_not_negative(name, key, group[key])
        check_at_most_one(name, "rho", group["rho"])

    def state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the running averages of squared gradients and of squared steps."""
        del group
        return "square_avg", "acc_delta"

    def options(self, group: Mapping[str, Any], step: int) -> Options:
        """Give the group's hyper-parameters."""
        del step
        return {key: group[key] for key in self.group_keys}
