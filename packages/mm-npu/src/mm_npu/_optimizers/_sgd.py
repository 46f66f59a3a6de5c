"""NpuFusedSGD: stochastic gradient descent, with momentum."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from mm_npu._errors import ConfigError

from ._arguments import check_not_negative
from ._on_torch import AbstractTorchOptimizer, plain_step_of


class NpuFusedSGD(AbstractTorchOptimizer, torch.optim.SGD):
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
        lr: Learning rate; the portable form takes a tensor, too.
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
    group_keys = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
    implementation: ClassVar[Mapping[str, Any]] = {
        "maximize": False,
        "foreach": None,  # torch decides: on for accelerators, where it is faster
        "differentiable": False,
        "fused": None,
    }
    plain_step = plain_step_of(torch.optim.SGD)
    # With halves, the fused kernel of torch 2.13 leaves most elements as they are.
    fused_dtypes = (torch.float64, torch.float32)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
        *,
        strict: bool | None = None,  # noqa: ARG002 - read before, when the object is made
    ) -> None:
        group = {"lr": lr, "momentum": momentum, "dampening": dampening, "nesterov": nesterov}
        self.check_group({**group, "weight_decay": weight_decay})
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov)

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Check ``lr``, ``momentum`` and ``weight_decay`` >= 0, and what nesterov needs.

        Raises:
            ConfigError: If a value is out of range.
        """
        name = type(self).__name__
        for key in ("lr", "momentum", "weight_decay"):
            check_not_negative(name, key, group[key])
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            raise ConfigError(
                f"nesterov of {name} was asked for with momentum {group['momentum']!r} and "
                f"dampening {group['dampening']!r}; it needs a momentum above 0 and no dampening."
            )

    def choose_kernel(self, group: dict[str, Any]) -> None:
        """Switch torch's fused kernel on for a group, but for a mixed step.

        The kernel knows one first step for all parameters: where some have a momentum buffer and
        others meet their first gradient, torch's other kernels do the step.
        """
        super().choose_kernel(group)
        if group.get("fused") and group["momentum"] != 0:
            entries = [self.state.get(p, {}) for p in group["params"] if p.grad is not None]
            if len({entry.get("momentum_buffer") is None for entry in entries}) > 1:
                group["fused"] = False

    def prepare_plain_step(self, group: dict[str, Any]) -> None:
        """Choose the kernel of a group once more: by now, some may have a momentum buffer."""
        if group["momentum"] != 0:
            self.choose_kernel(group)

    def make_kernel_call(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        entries: Sequence[Mapping[str, Any]],
        group: Mapping[str, Any],
    ) -> Callable[[], None]:
        """Return the call of torch's fused kernel for parameters of one dtype, on the CPU.

        Raises:
            KeyError: If a parameter has no momentum buffer yet.
        """
        buffers = [] if group["momentum"] == 0 else [e["momentum_buffer"] for e in entries]
        if any(buffer is None for buffer in buffers):  # of a state that torch 1.13 wrote
            raise KeyError("momentum_buffer")
        options = {key: group[key] for key in self.group_keys}
        return partial(
            torch._fused_sgd_,
            params,
            grads,
            buffers,
            **options,
            maximize=False,
            is_first_step=False,
        )
