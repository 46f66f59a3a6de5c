"""NpuFusedAdam: Adam with weight decay in the gradient."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ._arguments import check_betas, check_not_negative
from ._on_torch import AbstractTorchOptimizer, plain_step_of

# What Adam and AdamW of torch, in any version, keep in a group besides hyper-parameters.
ADAM_IMPLEMENTATION: Mapping[str, Any] = {
    "maximize": False,
    "foreach": None,  # torch decides: on for accelerators, where it is faster
    "capturable": False,
    "differentiable": False,
    "fused": None,
}


class AbstractAdam(AbstractTorchOptimizer):
    """What Adam and AdamW share: the call of their kernels."""

    kernel_name: ClassVar[str]

    def make_kernel_call(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        entries: Sequence[Mapping[str, Any]],
        group: Mapping[str, Any],
    ) -> Callable[[], None]:
        """Return the call of torch's fused kernel for parameters of one dtype, on the CPU.

        Raises:
            KeyError: If a parameter has no moments yet.
        """
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * group["amsgrad"]
        moments = [[entry[name] for entry in entries] for name in names]
        largest = moments[2] if group["amsgrad"] else []
        steps = [entry["step"] for entry in entries]
        options = {key: group[key] for key in ("lr", "weight_decay", "eps", "amsgrad")}
        beta1, beta2 = group["betas"]

        def call() -> None:
            torch._foreach_add_(steps, 1)
            getattr(torch, self.kernel_name)(
                params,
                grads,
                *moments[:2],
                largest,
                steps,
                **options,
                beta1=beta1,
                beta2=beta2,
                maximize=False,
            )

        return call


class NpuFusedAdam(AbstractAdam, torch.optim.Adam):
    r"""Adam: ``torch_npu.optim.NpuFusedAdam`` on an NPU, ``torch.optim.Adam`` elsewhere.

    For a parameter :math:`p` with gradient :math:`g` at step :math:`t = 1, 2, ...`:

    .. math::
        g &\leftarrow g + \mathrm{weight\_decay} \cdot p \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        w &\leftarrow v, \text{ or with amsgrad the largest } v \text{ so far} \\
        p &\leftarrow p - \frac{\mathrm{lr}}{1 - \beta_1^t} \cdot
            \frac{m}{\sqrt{w} / \sqrt{1 - \beta_2^t} + \epsilon}

    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015,
    https://arxiv.org/abs/1412.6980. amsgrad: Reddi, Kale and Kumar, "On the Convergence of Adam and
    Beyond", 2018, https://arxiv.org/abs/1904.09237.

    Args:
        params: Parameters, or dicts of parameter groups, as ``torch.optim`` takes them.
        lr: Learning rate; the portable form takes a tensor, too.
        betas: Decay rates of the two moments.
        eps: Added to the denominator.
        weight_decay: Multiple of the parameter that is added to its gradient.
        amsgrad: Whether the second moment never falls.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedAdam(torch.nn.Linear(2, 1).parameters(), lr=1e-3)
    """

    native_name = "NpuFusedAdam"
    torch_twin = "torch.optim.Adam"
    group_keys = ("lr", "betas", "eps", "weight_decay", "amsgrad")
    implementation: ClassVar[Mapping[str, Any]] = {
        **ADAM_IMPLEMENTATION,
        "decoupled_weight_decay": False,
    }
    plain_step = plain_step_of(torch.optim.Adam)
    kernel_name = "_fused_adam_"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
        *,
        strict: bool | None = None,  # noqa: ARG002 - read before, when the object is made
    ) -> None:
        self.check_group({"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Check ``lr``, ``eps`` and ``weight_decay`` >= 0 and 0 <= ``betas`` < 1.

        Raises:
            ConfigError: If a value is out of range.
        """
        check_adam_group(type(self).__name__, group)


def check_adam_group(optimizer: str, group: Mapping[str, Any]) -> None:
    """Check the hyper-parameters of Adam and AdamW.

    Raises:
        ConfigError: If a value is out of range.
    """
    for key in ("lr", "eps", "weight_decay"):
        check_not_negative(optimizer, key, group[key])
    check_betas(optimizer, group["betas"])
