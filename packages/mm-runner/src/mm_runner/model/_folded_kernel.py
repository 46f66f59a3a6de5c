"""The kernel of a convolution and the batch normalisation after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["CONVOLUTIONS", "convolve_folded"]

_TRANSPOSED = {
    nn.ConvTranspose1d: functional.conv_transpose1d,
    nn.ConvTranspose2d: functional.conv_transpose2d,
    nn.ConvTranspose3d: functional.conv_transpose3d,
}
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)


def convolve_folded(convolution: Any, norm: Any, inputs: Tensor) -> Tensor:
    """Return what ``norm`` in eval mode makes of what ``convolution`` makes of ``inputs``."""
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
