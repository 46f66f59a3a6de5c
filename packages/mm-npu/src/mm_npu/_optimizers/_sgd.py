"""NpuFusedSGD: stochastic gradient descent, with momentum."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from mm_npu._errors import ConfigError

from ._checks import REQUIRED, HyperParameters, accept, check_not_negative
from ._npu_state import torch_switches
from ._torch_rule import AbstractTorchRule


class NpuFusedSGD(AbstractTorchRule, torch.optim.SGD):
    r"""SGD: ``torch_npu.optim.NpuFusedSGD`` on an NPU, ``torch.optim.SGD`` elsewhere.

    For a parameter :math:`p` with gradient :math:`g`:

    .. math::
        g &\leftarrow g + \mathrm{weight\_decay} \cdot p \\
        b &\leftarrow g \text{ in its first step, later }
            \mathrm{momentum} \cdot b + (1 - \mathrm{dampening}) \, g \\
        d &\leftarrow g + \mathrm{momentum} \cdot b \text{ with nesterov, else } b \\
        p &\leftarrow p - \mathrm{lr} \cdot d

    Without momentum :math:`d = g`. Sutskever et al., "On the importance of initialization and
    momentum in deep learning", 2013, https://proceedings.mlr.press/v28/sutskever13.html.

    ``torch_npu`` has one first step for all parameters; here each has its own, as in torch.

    Args:
        params: Parameters, or dicts of parameter groups, as ``torch.optim`` takes them.
        lr: Learning rate; the portable form also takes a tensor.
        momentum: Decay rate of the momentum buffer; 0 keeps none.
        dampening: Fraction of the gradient that does not enter the momentum buffer.
        weight_decay: Multiple of the parameter that is added to its gradient.
        nesterov: Look ahead by one step of momentum. Needs momentum, and no dampening.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.

    Raises:
        ConfigError: If a hyper-parameter is out of range, or nesterov lacks what it needs.
        NpuUnavailableError: If strict, and there is no NPU.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedSGD(torch.nn.Linear(2, 1).parameters(), lr=0.1, momentum=0.9)
    """

    native_name = "NpuFusedSGD"
    torch_twin = "torch.optim.SGD"
    hyper_parameters: ClassVar[HyperParameters] = {
        "lr": (REQUIRED, check_not_negative),
        "momentum": (0.0, check_not_negative),
        "dampening": (0.0, accept),
        "weight_decay": (0.0, check_not_negative),
        "nesterov": (False, accept),
    }
    implementation: ClassVar[Mapping[str, Any]] = torch_switches("capturable")
    torch_class = torch.optim.SGD
    # With halves, the fused kernel of torch 2.13 leaves most elements as they are.
    fused_dtypes = (torch.float64, torch.float32)

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Check the hyper-parameters of one parameter group, and what nesterov needs.

        Raises:
            ConfigError: If a value is out of range.
        """
        super().check_group(group)
        name = type(self).__name__
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            raise ConfigError(
                f"nesterov of {name} was asked for with momentum {group['momentum']!r} and "
                f"dampening {group['dampening']!r}; it needs a momentum above 0 and no dampening."
            )

    def can_fuse(self, params: Collection[Tensor]) -> bool:
        """Return whether torch's fused kernel for the CPU makes the same update of ``params``.

        It knows one first step for all: either every parameter has a momentum buffer, or none.
        """
        entries = [self.state.get(p, {}) for p in params if p.grad is not None]
        has_buffer = {entry.get("momentum_buffer") is not None for entry in entries}
        return len(has_buffer) <= 1 and super().can_fuse(params)
