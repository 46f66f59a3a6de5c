"""Formulas for the operations that make up most of the work of a model.

torch has such a table too, from torch 2.1 on; this one is there in all versions and knows
recurrent layers. A multiplication and an addition count as two operations.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import Any

import torch

Formula = Callable[[Sequence[Any], Any], int]


@cache
def formulas() -> Mapping[Any, Formula]:
    """Return ``{operation: formula(args, outputs)}`` for the operations that this torch has."""
    aten = torch.ops.aten
    return {getattr(aten, name): f for name, f in _FORMULAS.items() if hasattr(aten, name)}


def _product(args: Sequence[Any], outputs: Any, *, first: int) -> int:
    """``(..., m, k) @ (..., k, n)``, the left factor being ``args[first]``."""
    return 2 * int(outputs.numel()) * int(args[first].shape[-1])


def _matrix_vector(args: Sequence[Any], _outputs: Any, *, first: int) -> int:
    return 2 * int(args[first].numel())


def _linear_backward(args: Sequence[Any], _outputs: Any) -> int:
    _inputs, grad_output, weight, mask = args[:4]
    return 2 * int(grad_output.numel()) * int(weight.shape[-1]) * int(sum(mask[:2]))


def _convolution(args: Sequence[Any], outputs: Any) -> int:
    inputs, weight, is_transposed = args[0], args[1], args[6]
    return _convolve(inputs, outputs, weight, is_transposed=is_transposed)


def _convolution_backward(args: Sequence[Any], _outputs: Any) -> int:
    grad_output, inputs, weight, is_transposed, mask = *args[:3], args[7], args[10]
    forward = _convolve(inputs, grad_output, weight, is_transposed=is_transposed)
    return forward * int(sum(mask[:2]))  # the gradients of inputs and weight cost as much each


def _convolve(inputs: Any, outputs: Any, weight: Any, *, is_transposed: bool) -> int:
    # Each position is multiplied with the whole kernel, (c_out, c_in / groups, *size).
    positions = inputs if is_transposed else outputs
    return 2 * int(positions.shape[0] * prod(positions.shape[2:]) * weight.numel())


def _attention(args: Sequence[Any], _outputs: Any) -> int:
    query, key, value = args[:3]
    return _scores(query, key) * int(query.shape[-1] + value.shape[-1])


def _attention_backward(args: Sequence[Any], _outputs: Any) -> int:
    _grad, query, key, value = args[:4]
    # The scores once more, and gradients: of query and key through them, of value and weights.
    return _scores(query, key) * int(3 * query.shape[-1] + 2 * value.shape[-1])


def _scores(query: Any, key: Any) -> int:
    return 2 * int(prod(query.shape[:-1]) * key.shape[-2])


def _recurrent(args: Sequence[Any], _outputs: Any, *, factor: int) -> int:
    inputs, weights = args[0], args[1]
    matrices = sum(weight.numel() for weight in weights if weight.ndim == 2)
    return factor * 2 * int(prod(inputs.shape[:-1]) * matrices)


def _recurrent_layer(args: Sequence[Any], outputs: Any, *, factor: int) -> int:
    return _recurrent((args[0], args[1:3]), outputs, factor=factor)


_left, _second = partial(_product, first=0), partial(_product, first=1)
_FORMULAS: Mapping[str, Formula] = {
    "mm": _left,
    "bmm": _left,
    "linear": _left,
    "_scaled_mm": _left,
    "addmm": _second,
    "addmm_": _second,
    "_addmm_activation": _second,
    "baddbmm": _second,
    "mv": partial(_matrix_vector, first=0),
    "dot": partial(_matrix_vector, first=0),
    "addmv": partial(_matrix_vector, first=1),
    "linear_backward": _linear_backward,
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "_cudnn_rnn": partial(_recurrent, factor=1),
    "_cudnn_rnn_backward": partial(_recurrent, factor=2),
    "miopen_rnn": partial(_recurrent, factor=1),
    "miopen_rnn_backward": partial(_recurrent, factor=2),
    "mkldnn_rnn_layer": partial(_recurrent_layer, factor=1),
    "mkldnn_rnn_layer_backward": partial(_recurrent_layer, factor=2),
}
