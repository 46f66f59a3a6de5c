"""NpuFusedBertAdam: Adam with a built-in schedule and clipping, as BERT was trained."""

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, ClassVar

import torch

from mm_npu._errors import ConfigError

from ._arithmetic import add_scaled_
from ._checks import REQUIRED, HyperParameters, check_fraction, check_not_negative
from ._stack import Operands
from ._stacked_rule import AbstractStackedRule, Group, Scales, total_norm

# (part of t_total that is over, warmup) -> factor of the learning rate, when warmup is over
SCHEDULES: Mapping[str, Callable[[float, float], float]] = {
    "warmup_cosine": lambda x, warmup: 0.5 * (1 + math.cos(math.pi * x)),  # noqa: ARG005
    "warmup_constant": lambda x, warmup: 1.0,  # noqa: ARG005
    "warmup_linear": lambda x, warmup: max((x - 1) / (warmup - 1), 0.0),
    # torch_npu raises when t_total is over: a root of a negative number
    "warmup_poly": lambda x, warmup: max(1 - x, 0.0) ** 0.5,  # noqa: ARG005
}


def _check_schedule(optimizer: str, name: str, value: Any) -> None:
    if value not in SCHEDULES:
        raise ConfigError(f"{name} of {optimizer} is {value!r}; it takes {', '.join(SCHEDULES)}.")


def _check_warmup(optimizer: str, name: str, value: Any) -> None:
    if value != -1:
        check_fraction(optimizer, name, value)


def _check_t_total(optimizer: str, name: str, value: Any) -> None:
    if not (isinstance(value, Real) and (value == -1 or float(value) > 0)):
        raise ConfigError(
            f"{name} of {optimizer} is {value!r}; it takes a number of steps > 0, or -1 for a "
            "constant learning rate."
        )


def _check_number(optimizer: str, name: str, value: Any) -> None:
    if not isinstance(value, Real):
        raise ConfigError(
            f"{name} of {optimizer} is {value!r}; it takes a number; 0 or less does not clip."
        )


class NpuFusedBertAdam(AbstractStackedRule):
    r"""BertAdam: ``torch_npu.optim.NpuFusedBertAdam`` on an NPU, a portable form elsewhere.

    For a parameter :math:`p` with gradient :math:`g` at step :math:`t = 1, 2, ...`:

    .. math::
        g &\leftarrow \min(1, \mathrm{max\_grad\_norm} / (|g|_2 + 10^{-6})) \, g \\
        m &\leftarrow b_1 m + (1 - b_1) g \\
        v &\leftarrow b_2 v + (1 - b_2) g^2 \\
        u &= m / (\sqrt{v} + e) + \mathrm{weight\_decay} \cdot p \\
        p &\leftarrow p - \mathrm{lr} \cdot f((t - 1) / \mathrm{t\_total}) \cdot u

    The norm :math:`|g|_2` is that of all gradients of a group and dtype together; the gradients
    themselves stay as they are. The factor :math:`f(x)` is 1 without ``t_total``; else it is
    ``x / warmup`` as long as ``x < warmup``, and then

    ==================  ========================================
    ``schedule``        :math:`f(x)`
    ==================  ========================================
    warmup_linear       :math:`\max((x - 1) / (\mathrm{warmup} - 1), 0)`
    warmup_constant     1
    warmup_cosine       :math:`(1 + \cos(\pi x)) / 2`
    warmup_poly         :math:`\sqrt{\max(1 - x, 0)}`
    ==================  ========================================

    With the default ``warmup`` of -1, warmup_linear therefore starts at one half, as in
    ``torch_npu``. There is no bias correction. Devlin et al., "BERT: Pre-training of Deep
    Bidirectional Transformers for Language Understanding", 2018, https://arxiv.org/abs/1810.04805.

    ``torch_npu`` raises in warmup_cosine past the warm-up and in warmup_poly past ``t_total``, and
    its checkpoints forget ``t``; the portable form computes what was meant.

    Args:
        params: Parameters, or dicts of parameter groups, as ``torch.optim`` takes them.
        lr: Learning rate; the portable form also takes a tensor.
        warmup: Part of ``t_total`` in which the learning rate grows from zero; -1 is no warm-up.
        t_total: Number of steps of the schedule; -1 keeps the learning rate constant.
        schedule: How the learning rate changes after the warm-up; one of the table above.
        b1: Decay rate of the first moment.
        b2: Decay rate of the second moment.
        e: Added to the denominator.
        weight_decay: Multiple of the parameter that is added to its update.
        max_grad_norm: Where gradients are clipped; 0 or less does not clip. One value for all
            groups: what a group says of it is kept, and, as in ``torch_npu``, not used.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> parameters = torch.nn.Linear(2, 1).parameters()
        >>> optimizer = NpuFusedBertAdam(parameters, lr=1e-4, warmup=0.1, t_total=1000)
    """

    native_name = "NpuFusedBertAdam"
    hyper_parameters: ClassVar[HyperParameters] = {
        "lr": (REQUIRED, check_not_negative),
        "warmup": (-1, _check_warmup),
        "t_total": (-1, _check_t_total),
        "schedule": ("warmup_linear", _check_schedule),
        "b1": (0.9, check_fraction),
        "b2": (0.999, check_fraction),
        "e": (1e-6, check_not_negative),
        "weight_decay": (0.01, check_not_negative),
        "max_grad_norm": (1.0, _check_number),
    }

    @property
    def takes_norms(self) -> bool:
        """Whether gradients are clipped to a norm: by the constructor's value, not a group's."""
        return bool(self.defaults["max_grad_norm"] > 0)

    def gradient_scales(self) -> Scales:
        """Clip the gradients of each group and dtype to one norm."""
        gradients: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
        for index, group in enumerate(self.param_groups if self.takes_norms else ()):
            for p in group["params"]:
                if p.grad is not None:
                    gradients.setdefault((index, p.dtype), []).append(p.grad)
        largest = self.defaults["max_grad_norm"]
        return {
            key: (largest / (total_norm(each) + 1e-6)).clamp(max=1)
            for key, each in gradients.items()
        }

    def update(self, operands: Operands, group: Group, step: int) -> None:
        """Make one step; the formula is in the docstring of the class."""
        p, gradient, state = operands
        state["exp_avg"].lerp_(gradient, 1 - group["b1"])
        state["exp_avg_sq"].mul_(group["b2"]).addcmul_(gradient, gradient, value=1 - group["b2"])
        root = state["exp_avg_sq"].sqrt().add_(group["e"])
        direction = torch.div(state["exp_avg"], root, out=root)
        if group["weight_decay"] > 0:
            direction.add_(p, alpha=group["weight_decay"])
        add_scaled_(p, direction, -group["lr"] * schedule_factor(group, step))


def schedule_factor(group: Mapping[str, Any], step: int) -> float:
    """Return the factor of the learning rate in a group's ``step``-th step, counted from one."""
    if group["t_total"] == -1:
        return 1.0
    x = (step - 1) / group["t_total"]
    if x < group["warmup"]:
        return float(x / group["warmup"])
    return SCHEDULES[group["schedule"]](x, group["warmup"])
