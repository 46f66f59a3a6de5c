"""Fold frozen batch normalizations into the convolutions before them.

In eval mode a batch normalization is linear. With its weight g, bias b, mean m and variance v,
``BN(conv(x))`` is the convolution of x with the kernel ``k * c`` and the bias ``(d - m) * c + b``,
where k and d are the convolution's own and ``c = g / sqrt(v + eps)``. The output of the convolution
is neither computed nor kept, and gradients reach every parameter ("tune mode" of Efficient ConvBN
Blocks for Transfer Learning and Beyond, 2023, https://arxiv.org/abs/2305.11624).
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from mm_runner._torch_private import can_convolve_with, convolve_with
from mm_runner.errors import ConfigError

from ._sharded_tensors import local_part
from ._wrapped_forward import call_replaced, replace_forward, restore_forwards

__all__ = ["Pair", "find_pairs", "fold_pair", "folding_forward"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_KEY = "efficient_conv_bn_eval"


@dataclass
class Pair:
    """A convolution whose output goes to one batch normalization and nowhere else."""

    name: str
    convolution: Any
    norm: Any
    output: Tensor | None = None  # on its way to the norm

    def error(self) -> ConfigError:
        """Return the error of an output that went elsewhere."""
        self.output = None
        return ConfigError(
            f"{_KEY}: the output of {self.name!r} did not go to its batch normalization in this "
            "forward, unlike when it was traced. Remove the module from the list."
        )


def find_pairs(module: nn.Module, name: str) -> list[Pair]:
    """Find the pairs in ``module`` with ``torch.fx``."""
    try:
        copied = copy.deepcopy(module)
        restore_forwards(copied)
        # A forward that draws random numbers draws them while it is traced.
        with torch.random.fork_rng(devices=[]):
            in_training, in_eval = (_traced_pairs(copied.train(mode)) for mode in (True, False))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        children = [f"{name}.{child}" for child, _ in module.named_children()]
        raise ConfigError(
            f"{_KEY}: torch.fx cannot trace {name!r} ({type(module).__name__}): {reason}. Name "
            f"parts of it whose forward does not depend on its inputs; it has {children}."
        ) from error
    found = [names for names in in_training if names in in_eval]
    if not found:
        raise ConfigError(
            f"{_KEY}: {name!r} ({type(module).__name__}) holds no convolution whose output goes to "
            "one batch normalization and nowhere else. Remove it from the list."
        )
    part = module.get_submodule
    return [Pair(f"{name}.{conv}", part(conv), part(norm)) for conv, norm in found]


def fold_pair(pair: Pair) -> None:
    """Fold the batch normalization into its convolution while it is in eval mode."""
    replace_forward(pair.convolution, folding_forward, pair)
    replace_forward(pair.norm, _passing_forward, pair)


def folding_forward(module: Any, replaced: Any, pair: Pair, input: Tensor) -> Any:  # noqa: A002
    """Compute the convolution and its batch normalization in one."""
    if pair.output is not None:
        raise pair.error()
    norm, weights = pair.norm, [module.weight, pair.norm.weight]
    can_fold = not norm.training and norm.running_mean is not None and can_convolve_with(module)
    # A module that FSDP2 shards by itself has whole parameters only in its own forward.
    if not can_fold or any(one is not None and local_part(one) is not one for one in weights):
        return call_replaced(module, replaced, input)
    pair.output = _convolve_folded(module, norm, input)
    return pair.output


def _passing_forward(module: Any, replaced: Any, pair: Pair, input: Tensor) -> Any:  # noqa: A002
    """Return what the convolution has normalized already."""
    if pair.output is None:
        return call_replaced(module, replaced, input)
    if pair.output is not input:
        raise pair.error()
    pair.output = None
    return input


def _convolve_folded(convolution: Any, norm: Any, inputs: Tensor) -> Tensor:
    weight = convolution.weight
    # Half precision is not enough for factors that are multiplied into the weights.
    precise = torch.promote_types(weight.dtype, torch.float32)
    factor = torch.rsqrt(norm.running_var.to(precise) + norm.eps)
    if norm.weight is not None:
        factor = factor * norm.weight
    bias = -norm.running_mean if convolution.bias is None else convolution.bias - norm.running_mean
    bias = bias * factor if norm.bias is None else bias * factor + norm.bias
    folded = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    return convolve_with(convolution, inputs, folded.to(weight.dtype), bias.to(weight.dtype))


def _traced_pairs(module: nn.Module) -> list[tuple[str, str]]:
    parameters = inspect.signature(module.forward).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    nodes = list(_Tracer().trace(module, concrete_args=defaults or None).nodes)
    calls: dict[Any, Any] = {
        node: module.get_submodule(node.target) for node in nodes if node.op == "call_module"
    }
    num_calls = Counter(map(id, calls.values()))
    pairs = []
    for node, norm in calls.items():
        source: Any = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        convolution = calls.get(source) if isinstance(source, fx.Node) else None
        if (
            (type(norm) in _NORMS or isinstance(norm, nn.SyncBatchNorm))
            and type(convolution) in _CONVOLUTIONS
            and len(source.users) == 1
            and num_calls[id(norm)] == num_calls[id(convolution)] == 1
        ):
            pairs.append((source.target, node.target))
    return pairs


class _Tracer(fx.Tracer):
    @override
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # Those of other packages, such as a synchronized one, are leaves too.
        return isinstance(m, _BatchNorm) or super().is_leaf_module(m, module_qualified_name)
