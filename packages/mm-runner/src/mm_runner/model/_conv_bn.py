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
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from mm_runner._torch_private import can_convolve_with, convolve_with
from mm_runner.errors import ConfigError

from ._sharded_tensors import sharded_type
from ._wrapped_forward import WrappedForward, forward_wrapper, restore_forwards

__all__ = ["Pair", "find_pairs", "fold_pairs", "folded_names"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_KEY = "efficient_conv_bn_eval"
_MAX_REASON = 300


class Pair(NamedTuple):
    """A convolution whose output goes to one batch normalization and nowhere else."""

    name: str
    convolution: Any
    norm: Any


def find_pairs(module: nn.Module, name: str) -> list[Pair]:
    """Find the pairs in ``module`` with ``torch.fx``."""
    try:
        copied = copy.deepcopy(module)
        restore_forwards(copied)
        # A forward that draws random numbers draws them while it is traced.
        with torch.random.fork_rng(devices=[]):
            in_training, in_eval = (_traced_pairs(copied.train(mode)) for mode in (True, False))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:_MAX_REASON]
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
    return [Pair(f"{name}.{names[0]}", *map(module.get_submodule, names)) for names in found]


def fold_pairs(pairs: Iterable[Pair]) -> None:
    """Fold each batch normalization into its convolution while it is in eval mode.

    A forward raises :class:`ConfigError` if the output of a folded convolution does not go to its
    batch normalization.
    """
    for pair in pairs:
        _NormForward(pair.norm, _FoldingForward(pair.convolution, pair))


def folded_names(model: nn.Module) -> list[str]:
    """Return the names of the folded convolutions in ``model``."""
    return [
        name for name, module in model.named_modules() if forward_wrapper(module, _FoldingForward)
    ]


class _FoldingForward(WrappedForward):
    def __init__(self, module: nn.Module, pair: Pair) -> None:
        super().__init__(module)
        self._pair = pair
        self._sharded_type = sharded_type()
        self.output: Tensor | None = None  # on its way to the norm

    def __call__(self, input: Tensor) -> Any:  # noqa: A002 - torch's name
        if self.output is not None:
            raise self.error()
        if not _can_fold(self.module, self._pair.norm, self._sharded_type):
            return self.call_replaced(input)
        self.output = _convolve_folded(self.module, self._pair.norm, input)
        return self.output

    def error(self) -> ConfigError:
        self.output = None
        return ConfigError(
            f"{_KEY}: the output of {self._pair.name!r} did not go to its batch normalization in "
            "this forward, unlike when it was traced. Remove the module from the list, or name "
            "parts of it in which each convolution is followed by its batch normalization."
        )


class _NormForward(WrappedForward):
    def __init__(self, module: nn.Module, convolution: _FoldingForward) -> None:
        super().__init__(module)
        self._convolution = convolution

    def __call__(self, input: Tensor) -> Any:  # noqa: A002 - torch's name
        output = self._convolution.output
        if output is None:
            return self.call_replaced(input)
        if output is not input:
            raise self._convolution.error()
        self._convolution.output = None
        return input


def _can_fold(convolution: Any, norm: Any, sharded: Any) -> bool:
    if norm.training or norm.running_mean is None or not can_convolve_with(convolution):
        return False
    # A module that FSDP2 shards by itself has whole parameters only in its own forward.
    return not isinstance(convolution.weight, sharded) and not isinstance(norm.weight, sharded)


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
            _is_batch_norm(norm)
            and type(convolution) in _CONVOLUTIONS
            and len(source.users) == 1
            and num_calls[id(norm)] == num_calls[id(convolution)] == 1
        ):
            pairs.append((source.target, node.target))
    return pairs


def _is_batch_norm(module: nn.Module) -> bool:
    return type(module) in _NORMS or isinstance(module, nn.SyncBatchNorm)


class _Tracer(fx.Tracer):
    @override
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # Those of other packages, such as a synchronized one, are leaves too.
        return isinstance(m, _BatchNorm) or super().is_leaf_module(m, module_qualified_name)
