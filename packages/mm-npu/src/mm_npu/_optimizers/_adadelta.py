"""NpuFusedAdadelta: steps in proportion to a running average of steps."""

from typing import ClassVar

from ._arithmetic import add_decay, add_scaled_
from ._checks import HyperParameters, check_at_most_one, check_not_negative
from ._stack import Operands
from ._stacked_rule import AbstractStackedRule, Group


class NpuFusedAdadelta(AbstractStackedRule):
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
        lr: Learning rate; the portable form also takes a tensor.
        rho: Decay rate of both running averages.
        eps: Added under both roots.
        weight_decay: Multiple of the parameter that is added to its gradient.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedAdadelta(torch.nn.Linear(2, 1).parameters(), lr=1.0)
    """

    native_name = "NpuFusedAdadelta"
    torch_twin = "torch.optim.Adadelta"
    hyper_parameters: ClassVar[HyperParameters] = {
        "lr": (1.0, check_not_negative),
        "rho": (0.9, check_at_most_one),
        "eps": (1e-6, check_not_negative),
        "weight_decay": (0, check_not_negative),
    }

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of the running averages of squared gradients and of squared steps."""
        del group
        return "square_avg", "acc_delta"

    def update(self, operands: Operands, group: Group, step: int) -> None:
        """Make one step; the formula is in the docstring of the class."""
        del step
        p, gradient, state = operands
        square_avg, acc_delta = state["square_avg"], state["acc_delta"]
        gradient = add_decay(gradient, p, group["weight_decay"])
        square_avg.mul_(group["rho"]).addcmul_(gradient, gradient, value=1 - group["rho"])
        root = square_avg.add(group["eps"]).sqrt_()
        delta = acc_delta.add(group["eps"]).sqrt_().div_(root).mul_(gradient)
        acc_delta.mul_(group["rho"]).addcmul_(delta, delta, value=1 - group["rho"])
        add_scaled_(p, delta, -group["lr"])
