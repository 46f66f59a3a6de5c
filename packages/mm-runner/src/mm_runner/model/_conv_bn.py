"""A convolution and the batch normalisation after it, computed as one convolution.

While the normalisation is in eval mode both are linear: with its weight g, bias b, mean m and
variance v, ``BN(conv(x))`` is the convolution of x with the kernel ``k * c`` and the bias
``(d - m) * c + b``, where k and d are the convolution's own and ``c = g / sqrt(v + eps)``. So what
the convolution gives is neither computed nor kept for the backward pass, and gradients reach every
parameter ("tune mode" of Efficient ConvBN Blocks for Transfer Learning and Beyond, 2023,
https://arxiv.org/abs/2305.11624).
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from ._variants import Variant, make_variant

__all__ = ["CONVOLUTIONS", "fold_into", "folded_names"]

_TRANSPOSED = {
    nn.ConvTranspose1d: functional.conv_transpose1d,
    nn.ConvTranspose2d: functional.conv_transpose2d,
    nn.ConvTranspose3d: functional.conv_transpose3d,
}
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)


def fold_into(convolution: nn.Module, norm: nn.Module) -> None:
    """Let ``convolution`` compute what ``norm`` would, while that is in eval mode, in place.

    Args:
        convolution: One of :data:`CONVOLUTIONS`, whose outputs go to ``norm`` only.
        norm: A batch normalisation, which gets nothing else.
    """
    make_variant(convolution, _FoldingConvolution)
    make_variant(norm, _FoldedNorm)
    convolution.__dict__["_norm"] = _Partner(norm)
    norm.__dict__["_convolution"] = _Partner(convolution)


def folded_names(model: nn.Module) -> list[str]:
    """Return the names of the convolutions in ``model`` that may compute a normalisation too."""
    return [
        name for name, module in model.named_modules() if isinstance(module, _FoldingConvolution)
    ]


class _Partner:
    """The other module of a pair, while that is there.

    One that was replaced in the model is gone, and the pair with it. Copies lead to copies.
    """

    def __init__(self, module: nn.Module | None) -> None:
        self.find: Any = _nothing if module is None else weakref.ref(module)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Partner, (self.find(),)


def _nothing() -> None:
    return None


class _FoldingConvolution(Variant):
    _norm: _Partner

    @override
    def forward(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        norm = self._norm.find()
        if norm is None or args or kwargs or not _is_one(self, norm):
            outputs: Tensor = super().forward(inputs, *args, **kwargs)
            return outputs
        return _convolve(self, norm, inputs)


class _FoldedNorm(Variant):
    _convolution: _Partner

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        convolution = self._convolution.find()
        if convolution is not None and _is_one(convolution, self):
            return inputs
        outputs: Tensor = super().forward(inputs)
        return outputs


def _is_one(convolution: Any, norm: Any) -> bool:
    # Hooks between the two are to see what is between them.
    is_hooked = convolution._forward_hooks or norm._forward_pre_hooks  # noqa: SLF001
    return not norm.training and norm.running_mean is not None and not is_hooked


def _convolve(convolution: Any, norm: Any, inputs: Tensor) -> Tensor:
    weight = convolution.weight
    # Half precision is not enough for what is only multiplied into the weights.
    precise = torch.promote_types(weight.dtype, torch.float32)
    factor = torch.rsqrt(norm.running_var.to(precise) + norm.eps)
    if norm.weight is not None:
        factor = factor * norm.weight
    bias = -norm.running_mean if convolution.bias is None else convolution.bias - norm.running_mean
    bias = bias * factor if norm.bias is None else bias * factor + norm.bias
    is_transposed = convolution.transposed
    weight = _scaled(weight, factor, convolution.groups if is_transposed else None)
    weight, bias = weight.to(convolution.weight.dtype), bias.to(convolution.weight.dtype)
    if not is_transposed:
        return convolution._conv_forward(inputs, weight, bias)  # type: ignore[no-any-return]  # noqa: SLF001
    transpose: Any = next(
        function for kind, function in _TRANSPOSED.items() if isinstance(convolution, kind)
    )
    return transpose(  # type: ignore[no-any-return]
        inputs,
        weight,
        bias,
        convolution.stride,
        convolution.padding,
        convolution.output_padding,
        convolution.groups,
        convolution.dilation,
    )


def _scaled(weight: Tensor, factor: Tensor, groups: int | None) -> Tensor:
    """Multiply what makes each output channel by its factor.

    Args:
        weight: Shape ``(channels out, channels in / groups, ...)``; of a transposed convolution
            ``(channels in, channels out / groups, ...)``.
        factor: Shape ``(channels out,)``.
        groups: Of a transposed convolution.
    """
    if groups is None:
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    by_group = weight.reshape(groups, -1, *weight.shape[1:])
    factors = factor.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
    return (by_group * factors).reshape(weight.shape)
