"""NpuFusedAdam: Adam with weight decay in the gradient."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from ._checks import HyperParameters, accept, check_betas, check_not_negative
from ._npu_state import torch_switches
from ._torch_rule import AbstractTorchRule

ADAM_HYPER_PARAMETERS: HyperParameters = {
    "lr": (1e-3, check_not_negative),
    "betas": ((0.9, 0.999), check_betas),
    "eps": (1e-8, check_not_negative),
    "weight_decay": (0, check_not_negative),
    "amsgrad": (False, accept),
}


class NpuFusedAdam(AbstractTorchRule, torch.optim.Adam):
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
        lr: Learning rate; the portable form also takes a tensor.
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
    hyper_parameters: ClassVar[HyperParameters] = ADAM_HYPER_PARAMETERS
    implementation: ClassVar[Mapping[str, Any]] = torch_switches(decoupled_weight_decay=False)
    torch_class = torch.optim.Adam
