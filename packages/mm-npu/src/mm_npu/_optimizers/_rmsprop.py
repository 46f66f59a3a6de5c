"""NpuFusedRMSprop: gradients divided by the root of their running mean square."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ._arguments import check_not_negative
from ._arithmetic import (
    add_ratio,
    add_scaled,
    move_average,
    move_average_of_squares,
    prepare_gradient,
)
from ._blockwise import AbstractBlockwiseOptimizer
from ._fused import fits, momentum_step, rmsprop_step
from ._operands import Operands
from ._rules import Options, Spares


def update(operands: Operands, spares: Spares, options: Options) -> None:
    """Make one step; the formula stands at the class."""
    p, gradient, state = operands
    first, second, _ = spares
    if fits(operands, options) and _is_plain(options):
        numbers = [options[key] for key in ("alpha", "eps", "lr", "weight_decay")]
        rmsprop_step(operands, first, *numbers)
        return
    gradient = prepare_gradient(gradient, p, options["weight_decay"], options["scale"], first)
    square_avg, alpha = state["square_avg"], options["alpha"]
    move_average_of_squares(square_avg, gradient, alpha)
    if options["centered"]:
        mean = state["grad_avg"]
        move_average(mean, gradient, alpha)
        root = torch.addcmul(square_avg, mean, mean, value=-1, out=second).sqrt_()
    else:
        root = torch.sqrt(square_avg, out=second)
    root.add_(options["eps"])
    if options["momentum"] > 0:
        used = Operands(p, gradient, state)
        descend_by_momentum(used, root, options, weight=1, rate=options["lr"])
    else:
        add_ratio(p, gradient, root, -options["lr"])


def _is_plain(options: Options) -> bool:
    # A mean square that does not decay has no fused kernel: its bias correction would be 1 - 1.
    return not options["centered"] and options["momentum"] == 0 and options["alpha"] < 1


def descend_by_momentum(
    operands: Operands,
    root: Tensor,
    options: Options,
    *,
    weight: float | Tensor,
    rate: float | Tensor,
) -> None:
    """Make ``buffer = momentum * buffer + weight * gradient / root`` and ``p -= rate * buffer``.

    The tensor ``root`` is used up.
    """
    p, gradient, state = operands
    buffer = state["momentum_buffer"]
    if fits(operands, options):
        direction = torch.div(gradient, root, out=root)
        momentum_step(p, direction, buffer, options["momentum"], weight, rate)
        return
    buffer.mul_(options["momentum"])
    add_ratio(buffer, gradient, root, weight)
    add_scaled(p, buffer, -rate, root)


class AbstractRMSprop(AbstractBlockwiseOptimizer):
    """What RMSprop and RMSpropTF share: their numbers, and which state these need."""

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Check that every number is >= 0.

        Raises:
            ConfigError: If a value is out of range.
        """
        for key in ("lr", "alpha", "eps", "weight_decay", "momentum"):
            check_not_negative(type(self).__name__, key, group[key])

    def state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the running averages and the momentum buffer, as far as the group needs them."""
        names = ["square_avg"]
        if group["momentum"] > 0:
            names.append("momentum_buffer")
        if group["centered"]:
            names.append("grad_avg")
        return tuple(names)

    def options(self, group: Mapping[str, Any], step: int) -> Options:
        """Give the group's hyper-parameters."""
        del step
        return {key: group[key] for key in self.group_keys}


class NpuFusedRMSprop(AbstractRMSprop):
    r"""RMSprop: ``torch_npu.optim.NpuFusedRMSprop`` on an NPU, a portable form elsewhere.

    For a parameter :math:`p` with gradient :math:`g`:

    .. math::
        g &\leftarrow g + \mathrm{weight\_decay} \cdot p \\
        s &\leftarrow \alpha s + (1 - \alpha) g^2 \\
        a &\leftarrow \alpha a + (1 - \alpha) g \text{ if centered, else } 0 \\
        b &\leftarrow \mathrm{momentum} \cdot b + g / (\sqrt{s - a^2} + \epsilon) \\
        p &\leftarrow p - \mathrm{lr} \cdot b

    Tieleman and Hinton, "Lecture 6.5: RMSProp", COURSERA: Neural Networks for Machine Learning,
    2012, https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf. Centered:
    Graves, "Generating Sequences With Recurrent Neural Networks", 2013,
    https://arxiv.org/abs/1308.0850. The same as ``torch.optim.RMSprop``.

    Args:
        params: Parameters, or dicts of parameter groups, as ``torch.optim`` takes them.
        lr: Learning rate; the portable form takes a tensor, too.
        alpha: Decay rate of the running averages.
        eps: Added to the root.
        weight_decay: Multiple of the parameter that is added to its gradient.
        momentum: Decay rate of the momentum buffer; 0 keeps none.
        centered: Subtract the square of the mean gradient, so that the variance divides.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.
        compiled: Compile the portable form's step with ``torch.compile``. ``torch_npu`` has none.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.
        TorchVersionError: If compiled, and this torch cannot compile.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedRMSprop(torch.nn.Linear(2, 1).parameters(), lr=0.01)
    """

    native_name = "NpuFusedRMSprop"
    torch_twin = "torch.optim.RMSprop"
    group_keys: ClassVar[tuple[str, ...]] = (
        "lr",
        "alpha",
        "eps",
        "weight_decay",
        "momentum",
        "centered",
    )
    rule = staticmethod(update)
    has_one_kernel = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
        *,
        strict: bool | None = None,  # noqa: ARG002 - read before, when the object is made
        compiled: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
        }
        super().__init__(params, defaults, compiled=compiled)
