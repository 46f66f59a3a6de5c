"""NpuFusedRMSpropTF: RMSprop as TensorFlow 1 computed it."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from ._arithmetic import add_ratio, move_average, move_average_of_squares, prepare_gradient
from ._operands import Operands
from ._rmsprop import AbstractRMSprop, descend_by_momentum
from ._rules import Options, Spares


def update(operands: Operands, spares: Spares, options: Options) -> None:
    """Make one step; the formula stands at the class."""
    p, gradient, state = operands
    first, second, _ = spares
    decay = options["weight_decay"]
    if options["decoupled_decay"] and decay != 0:
        p.mul_(1 - decay)
        decay = 0
    gradient = prepare_gradient(gradient, p, decay, options["scale"], first)
    square_avg, alpha = state["square_avg"], options["alpha"]
    move_average_of_squares(square_avg, gradient, alpha)
    if options["centered"]:
        mean = state["grad_avg"]
        move_average(mean, gradient, alpha)
        variance = torch.addcmul(square_avg, mean, mean, value=-1, out=second)
        root = variance.add_(options["eps"]).sqrt_()
    else:
        root = torch.add(square_avg, options["eps"], out=second).sqrt_()
    if options["momentum"] > 0:
        lr, used = options["lr"], Operands(p, gradient, state)
        weight, rate = (lr, 1) if options["lr_in_momentum"] else (1, lr)
        descend_by_momentum(used, root, options, weight=weight, rate=rate)
    else:
        add_ratio(p, gradient, root, -options["lr"])


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
        lr: Learning rate; the portable form takes a tensor, too.
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
        compiled: Compile the portable form's step with ``torch.compile``. ``torch_npu`` has none.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.
        TorchVersionError: If compiled, and this torch cannot compile.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedRMSpropTF(torch.nn.Linear(2, 1).parameters(), momentum=0.9)
    """

    native_name = "NpuFusedRMSpropTF"
    group_keys: ClassVar[tuple[str, ...]] = (
        "lr",
        "alpha",
        "eps",
        "weight_decay",
        "momentum",
        "centered",
        "decoupled_decay",
        "lr_in_momentum",
    )
    rule = staticmethod(update)
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
        compiled: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "decoupled_decay": decoupled_decay,
            "lr_in_momentum": lr_in_momentum,
        }
        super().__init__(params, defaults, compiled=compiled)
