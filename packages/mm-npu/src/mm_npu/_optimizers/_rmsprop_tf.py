"""NpuFusedRMSpropTF: RMSprop as TensorFlow 1 computed it."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from ._arithmetic import add_decay, add_ratio_, add_scaled_
from ._checks import Check, accept
from ._rmsprop import RMSPROP_HYPER_PARAMETERS, AbstractRMSprop
from ._stack import Operands
from ._stacked_rule import Group


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
    hyper_parameters: ClassVar[Mapping[str, Check]] = {
        **RMSPROP_HYPER_PARAMETERS,
        "decoupled_decay": accept,
        "lr_in_momentum": accept,
    }
    starts_at: ClassVar[Mapping[str, float]] = {"square_avg": 1.0}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.9,
        eps: float = 1e-10,
        weight_decay: float = 0,
        momentum: float = 0.0,
        centered: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
        decoupled_decay: bool = False,  # noqa: FBT001, FBT002
        lr_in_momentum: bool = True,  # noqa: FBT001, FBT002
        *,
        strict: bool | None = None,  # noqa: ARG002 - read before, when the object is made
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            decoupled_decay=decoupled_decay,
            lr_in_momentum=lr_in_momentum,
        )

    def update(self, operands: Operands, group: Group, step: int) -> None:
        """Make one step; the formula is in the docstring of the class."""
        del step
        p, gradient, state = operands
        square_avg, lr = state["square_avg"], group["lr"]
        if not group["decoupled_decay"]:
            gradient = add_decay(gradient, p, group["weight_decay"])
        elif group["weight_decay"] != 0:
            p.mul_(1 - group["weight_decay"])
        square_avg.mul_(group["alpha"]).addcmul_(gradient, gradient, value=1 - group["alpha"])
        if group["centered"]:
            mean = state["grad_avg"]
            mean.lerp_(gradient, 1 - group["alpha"])
            root = square_avg.addcmul(mean, mean, value=-1).add_(group["eps"]).sqrt_()
        else:
            root = square_avg.add(group["eps"]).sqrt_()
        if group["momentum"] > 0:
            in_momentum, outside = (lr, 1) if group["lr_in_momentum"] else (1, lr)
            buffer = state["momentum_buffer"].mul_(group["momentum"])
            add_ratio_(buffer, gradient, root, in_momentum)
            add_scaled_(p, buffer, -outside)
        else:
            add_ratio_(p, gradient, root, -lr)
