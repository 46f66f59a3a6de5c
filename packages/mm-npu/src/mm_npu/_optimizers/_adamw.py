"""NpuFusedAdamW: Adam with decoupled weight decay."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from ._adam import ADAM_HYPER_PARAMETERS
from ._checks import HyperParameters, check_not_negative
from ._npu_state import torch_switches
from ._torch_rule import AbstractTorchRule


class NpuFusedAdamW(AbstractTorchRule, torch.optim.AdamW):
    r"""AdamW: ``torch_npu.optim.NpuFusedAdamW`` on an NPU, ``torch.optim.AdamW`` elsewhere.

    For a parameter :math:`p` with gradient :math:`g` at step :math:`t = 1, 2, ...`:

    .. math::
        p &\leftarrow p \, (1 - \mathrm{lr} \cdot \mathrm{weight\_decay}) \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        w &\leftarrow v, \text{ or with amsgrad the largest } v \text{ so far} \\
        p &\leftarrow p - \frac{\mathrm{lr}}{1 - \beta_1^t} \cdot
            \frac{m}{\sqrt{w} / \sqrt{1 - \beta_2^t} + \epsilon}

    Decoupled weight decay: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019,
    https://arxiv.org/abs/1711.05101. amsgrad: Reddi, Kale and Kumar, "On the Convergence of Adam
    and Beyond", 2018, https://arxiv.org/abs/1904.09237.

    Args:
        params: Parameters, or dicts of parameter groups, as ``torch.optim`` takes them.
        lr: Learning rate; the portable form also takes a tensor.
        betas: Decay rates of the two moments.
        eps: Added to the denominator.
        weight_decay: Fraction of ``lr`` by which weights shrink in each step.
        amsgrad: Whether the second moment never falls.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedAdamW(torch.nn.Linear(2, 1).parameters(), lr=1e-3)
    """

    native_name = "NpuFusedAdamW"
    torch_twin = "torch.optim.AdamW"
    hyper_parameters: ClassVar[HyperParameters] = {
        **ADAM_HYPER_PARAMETERS,
        "weight_decay": (1e-2, check_not_negative),
    }
    implementation: ClassVar[Mapping[str, Any]] = torch_switches(decoupled_weight_decay=True)
    torch_class = torch.optim.AdamW
