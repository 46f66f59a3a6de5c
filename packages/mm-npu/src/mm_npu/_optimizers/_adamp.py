"""NpuFusedAdamP: Adam that does not grow the norm of scale-invariant weights."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ._arguments import check_betas, check_not_negative
from ._arithmetic import move_average, move_average_of_squares, prepare_gradient
from ._blockwise import AbstractBlockwiseOptimizer
from ._fused import adam_direction, fits
from ._operands import Operands
from ._rules import Options, Spares, Step


class AdamPRule:
    """One step; the formula stands at ``NpuFusedAdamP``.

    Operands are ``(n, channels, elements of one)``; those of parameters without two dimensions,
    which are not projected, are ``(n, elements)``.
    """

    def advance(self, operands: Operands, spares: Spares, options: Options) -> Tensor:
        """Update the moments; the direction goes to the first spare tensor.

        Returns:
            Of each channel, the products ``<p, g>``, ``<p, u>``, ``<p, p>``, ``<g, g>``:
            ``(4, n, channels)``.
        """
        p, gradient, state = operands
        direction, spare, _ = spares
        gradient = prepare_gradient(gradient, p, 0, options["scale"], spare)
        beta1, beta2 = options["betas"]
        exp_avg = state["exp_avg"]
        if fits(operands, options) and not options["nesterov"]:
            decays, correction = options["betas"], options["root_correction"]
            adam_direction(gradient, state, decays, options["eps"], direction, correction)
            return self._sums(p, gradient, direction, spare)
        move_average(exp_avg, gradient, beta1)
        move_average_of_squares(state["exp_avg_sq"], gradient, beta2)
        root = torch.sqrt(state["exp_avg_sq"], out=direction).div_(options["root_correction"])
        root.add_(options["eps"])
        if options["nesterov"]:
            torch.mul(exp_avg, beta1, out=spare).add_(gradient, alpha=1 - beta1)
            torch.div(spare, root, out=direction)
        else:
            torch.div(exp_avg, root, out=direction)
        return self._sums(p, gradient, direction, spare)

    def _sums(self, p: Tensor, gradient: Tensor, direction: Tensor, spare: Tensor) -> Tensor:
        if p.dim() == 2:
            return p.new_zeros(4, len(p), 1)
        return torch.stack(
            [torch.mul(p, t, out=spare).sum(2) for t in (gradient, direction)]
            + [torch.linalg.vector_norm(t, dim=2).square_() for t in (p, gradient)]
        )

    def conclude(self, sums: Tensor, shape: tuple[int, ...], options: Options) -> Step:
        """Take the part along the parameter out of the direction, where they are orthogonal.

        The projection ``u - n <n, u>`` with ``n = p / (|p| + eps)`` is a multiple of ``p`` less:
        it and the weight decay are one factor of ``p``.
        """
        rate, decay = options["step_size"], options["lr"] * options["weight_decay"]
        if len(shape) == 2:
            return Step(1 - decay, rate)
        by_channel, use_channel = _project(sums, shape[2], options)
        by_layer, use_layer = _project(sums.sum(-1, keepdim=True), shape[1] * shape[2], options)
        along = torch.where(
            use_channel, by_channel, torch.where(use_layer, by_layer, torch.zeros_like(by_layer))
        )
        is_projected = use_channel | use_layer
        ratio = torch.where(
            is_projected,
            torch.full_like(by_layer, options["wd_ratio"]),
            torch.ones_like(by_layer),
        )
        return Step((1 - ratio * decay + along * rate).unsqueeze(2), rate)


def _project(sums: Tensor, length: int, options: Options) -> tuple[Tensor, Tensor]:
    """Return the direction's part along each row of parameters, and whether to take it out."""
    p_gradient, p_direction, p_square, gradient_square = sums
    p_norm = p_square.sqrt() + options["eps"]
    cosine = p_gradient.abs() / (p_norm * (gradient_square.sqrt() + options["eps"]))
    is_orthogonal = cosine.amax(-1, keepdim=True) < options["delta"] / length**0.5
    return p_direction / p_norm.square(), is_orthogonal


class NpuFusedAdamP(AbstractBlockwiseOptimizer):
    r"""AdamP: ``torch_npu.optim.NpuFusedAdamP`` on an NPU, a portable form elsewhere.

    For a parameter :math:`p` with gradient :math:`g` at step :math:`t = 1, 2, ...`:

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        u &= \bar m / (\sqrt{v} / \sqrt{1 - \beta_2^t} + \epsilon), \quad
            \bar m = \beta_1 m + (1 - \beta_1) g \text{ with nesterov, else } m \\
        u &\leftarrow u - n \langle n, u \rangle, \quad n = p / (|p|_2 + \epsilon), \quad
            \text{if projected} \\
        p &\leftarrow p \, (1 - \mathrm{lr} \cdot \mathrm{weight\_decay} \cdot r) \\
        p &\leftarrow p - \frac{\mathrm{lr}}{1 - \beta_1^t} \, u

    A parameter of two dimensions or more is projected channel by channel (along its first
    dimension), if in every channel the cosine of :math:`g` and :math:`p` is smaller than
    ``delta`` divided by the root of the channel's size; else as a whole, if that holds for the
    whole. Then :math:`r` is ``wd_ratio``, and 1 otherwise. Heo et al., "AdamP: Slowing Down the
    Slowdown for Momentum Optimizers on Scale-invariant Weights", 2021,
    https://arxiv.org/abs/2006.08217.

    ``torch_npu`` checks no argument of this one; the portable form does.

    Args:
        params: Parameters, or dicts of parameter groups, as ``torch.optim`` takes them.
        lr: Learning rate; the portable form takes a tensor, too.
        betas: Decay rates of the two moments.
        eps: Added to the denominator, and to the norms.
        weight_decay: Fraction of ``lr`` by which weights shrink in each step.
        delta: Threshold of the cosine.
        wd_ratio: Part of the weight decay that applies to projected parameters.
        nesterov: Look ahead by one step of momentum.
        strict: Refuse the portable form: True or False; None follows ``MM_NPU_STRICT``.
        compiled: Compile the portable form's step with ``torch.compile``. ``torch_npu`` has none.

    Raises:
        ConfigError: If a hyper-parameter is out of range.
        NpuUnavailableError: If strict, and there is no NPU.
        TorchVersionError: If compiled, and this torch cannot compile.

    Warns:
        PortableOptimizerWarning: Once per process, if the portable form runs.

    Example:
        >>> optimizer = NpuFusedAdamP(torch.nn.Linear(2, 1).parameters(), weight_decay=1e-2)
    """

    native_name = "NpuFusedAdamP"
    group_keys: ClassVar[tuple[str, ...]] = (
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "delta",
        "wd_ratio",
        "nesterov",
    )
    rule = AdamPRule()
    has_one_kernel = True
    varying = ("lr", "step_size", "root_correction")
    equal_steps = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        nesterov: bool = False,  # noqa: FBT001, FBT002 - torch_npu's signature
        *,
        strict: bool | None = None,  # noqa: ARG002 - read before, when the object is made
        compiled: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "delta": delta,
            "wd_ratio": wd_ratio,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults, compiled=compiled)

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Check that numbers are >= 0 and 0 <= ``betas`` < 1.

        Raises:
            ConfigError: If a value is out of range.
        """
        name = type(self).__name__
        for key in ("lr", "eps", "weight_decay", "delta", "wd_ratio"):
            check_not_negative(name, key, group[key])
        check_betas(name, group["betas"])

    def state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the two moments."""
        del group
        return "exp_avg", "exp_avg_sq"

    def options(self, group: Mapping[str, Any], step: int) -> Options:
        """Give the group's hyper-parameters, with the bias corrections of this step."""
        beta1, beta2 = group["betas"]
        return {
            **{key: group[key] for key in self.group_keys},
            "step_size": group["lr"] / (1 - beta1**step),
            "root_correction": (1 - beta2**step) ** 0.5,
        }

    @staticmethod
    def operand_shape(count: int, p: Tensor) -> tuple[int, ...]:
        """Give ``(count, channels, elements of one)``, or ``(count, elements)``; see the rule."""
        if p.dim() < 2:
            return count, p.numel()
        return count, p.shape[0], p.numel() // p.shape[0]
