"""NpuFusedRMSprop and NpuFusedRMSpropTF: divide gradients by the root of their mean square."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from ._arithmetic import add_decay, add_ratio_, add_scaled_
from ._checks import HyperParameters, accept, check_not_negative
from ._stack import Operands
from ._stacked_rule import AbstractStackedRule, Group

RMSPROP_HYPER_PARAMETERS: HyperParameters = {
    "lr": (1e-2, check_not_negative),
    "alpha": (0.99, check_not_negative),
    "eps": (1e-8, check_not_negative),
    "weight_decay": (0, check_not_negative),
    "momentum": (0, check_not_negative),
    "centered": (False, accept),
}


class AbstractRMSprop(AbstractStackedRule):
    """The states and running averages of RMSprop and RMSpropTF."""

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of the running averages and the momentum buffer that a group needs."""
        names = ["square_avg"]
        if group["momentum"] > 0:
            names.append("momentum_buffer")
        if group["centered"]:
            names.append("grad_avg")
        return tuple(names)

    def mean_square(self, gradient: Tensor, state: Mapping[str, Tensor], group: Group) -> Tensor:
        """Update the running averages; return a new tensor: the mean square, or the variance."""
        square_avg = state["square_avg"]
        square_avg.mul_(group["alpha"]).addcmul_(gradient, gradient, value=1 - group["alpha"])
        if not group["centered"]:
            return square_avg.clone()
        mean = state["grad_avg"]
        mean.lerp_(gradient, 1 - group["alpha"])
        return square_avg.addcmul(mean, mean, value=-1)


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
        lr: Learning rate; the portable form also takes a tensor.
        alpha: Decay rate of the running averages.
        eps: Added to the root.
        weight_decay: Multiple of the parameter that is added to its gradient.
        momentum: Decay rate of the momentum buffer; 0 keeps none.
        centered: Subtract the square of the mean gradient, so that the variance divides.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedRMSprop(torch.nn.Linear(2, 1).parameters(), lr=0.01)
    """

    native_name = "NpuFusedRMSprop"
    torch_twin = "torch.optim.RMSprop"
    hyper_parameters: ClassVar[HyperParameters] = RMSPROP_HYPER_PARAMETERS

    def update(self, operands: Operands, group: Group, step: int) -> None:
        """Make one step; the formula is in the docstring of the class."""
        del step
        p, gradient, state = operands
        gradient = add_decay(gradient, p, group["weight_decay"])
        root = self.mean_square(gradient, state, group).sqrt_().add_(group["eps"])
        if group["momentum"] > 0:
            buffer = state["momentum_buffer"].mul_(group["momentum"])
            buffer.addcdiv_(gradient, root)
            add_scaled_(p, buffer, -group["lr"])
        else:
            add_ratio_(p, gradient, root, -group["lr"])


class NpuFusedRMSpropTF(AbstractRMSprop):
    r"""RMSpropTF: ``torch_npu.optim.NpuFusedRMSpropTF`` on an NPU, a portable form elsewhere.

    For a parameter :math:`p` with gradient :math:`g`, where :math:`s` starts at one:

    .. math::
        p &\leftarrow p - \mathrm{weight\_decay} \cdot p \text{ if decoupled, else }
            g \leftarrow g + \mathrm{weight\_decay} \cdot p \\
        s &\leftarrow \alpha s + (1 - \alpha) g^2 \\
        a &\leftarrow \alpha a + (1 - \alpha) g \text{ if centered, else } 0 \\
        b &\leftarrow \mathrm{momentum} \cdot b
            + \mathrm{lr} \cdot g / \sqrt{s - a^2 + \epsilon} \\
        p &\leftarrow p - b

    Without lr_in_momentum, the learning rate scales :math:`b` in the last line instead. It is
    RMSprop with :math:`\epsilon` under the root, as TensorFlow 1 has it
    (https://www.tensorflow.org/api_docs/python/tf/compat/v1/train/RMSPropOptimizer), on which the
    published training recipes of EfficientNet rest. The decoupled decay is not scaled by the
    learning rate: timm's class of this name scales it.

    Args:
        params: Parameters, or dicts of parameter groups, as ``torch.optim`` takes them.
        lr: Learning rate; the portable form also takes a tensor.
        alpha: Decay rate of the running averages.
        eps: Added under the root.
        weight_decay: Multiple of the parameter that is added to its gradient, or, if decoupled,
            the fraction of itself that it loses in each step.
        momentum: Decay rate of the momentum buffer; 0 keeps none.
        centered: Subtract the square of the mean gradient, so that the variance divides.
        decoupled_decay: Apply the weight decay to the parameter itself.
        lr_in_momentum: Accumulate steps, each with the learning rate of its time, as TensorFlow
            does; else accumulate directions.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedRMSpropTF(torch.nn.Linear(2, 1).parameters(), momentum=0.9)
    """

    native_name = "NpuFusedRMSpropTF"
    hyper_parameters: ClassVar[HyperParameters] = {
        **RMSPROP_HYPER_PARAMETERS,
        "alpha": (0.9, check_not_negative),
        "eps": (1e-10, check_not_negative),
        "decoupled_decay": (False, accept),
        "lr_in_momentum": (True, accept),
    }
    starts_at: ClassVar[Mapping[str, float]] = {"square_avg": 1.0}

    def update(self, operands: Operands, group: Group, step: int) -> None:
        """Make one step; the formula is in the docstring of the class."""
        del step
        p, gradient, state = operands
        if not group["decoupled_decay"]:
            gradient = add_decay(gradient, p, group["weight_decay"])
        elif group["weight_decay"] != 0:
            p.mul_(1 - group["weight_decay"])
        root = self.mean_square(gradient, state, group).add_(group["eps"]).sqrt_()
        lr = group["lr"]
        if group["momentum"] > 0:
            in_momentum, outside = (lr, 1) if group["lr_in_momentum"] else (1, lr)
            buffer = state["momentum_buffer"].mul_(group["momentum"])
            add_ratio_(buffer, gradient, root, in_momentum)
            add_scaled_(p, buffer, -outside)
        else:
            add_ratio_(p, gradient, root, -lr)
