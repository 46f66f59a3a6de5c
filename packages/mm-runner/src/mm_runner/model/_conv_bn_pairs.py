"""Which convolution's output goes to which batch normalisation, and nowhere else."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from mm_runner.errors import ConfigError

from ._batch_norms import is_batch_norm
from ._conv_bn import CONVOLUTIONS
from ._named_modules import has_forward
from ._variants import unmake_variants

__all__ = ["find_pairs"]

Pairs = list[tuple[str, str]]
_LONGEST_REASON = 300


def find_pairs(module: nn.Module, name: str, where: str) -> Pairs:
    """Find convolutions in ``module`` that are followed by a batch normalisation of their own.

    The forward is traced by ``torch.fx`` on a copy, once for training and once for evaluation; what
    holds in both counts.

    Args:
        module: Is not changed.
        name: Its name in the model.
        where: The key that names it, for messages.

    Returns:
        The names of both in the model.

    Raises:
        ConfigError: If it cannot be traced, or there is no such pair.
    """
    try:
        pairs = _pairs_of(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_REASON]
        raise ConfigError(
            f"{where}: {name!r} ({type(module).__name__}) was given, and torch.fx cannot trace its "
            f"forward: {reason}. {_remedy(module, name)}"
        ) from error
    if not pairs:
        raise ConfigError(
            f"{where}: {name!r} ({type(module).__name__}) was given; no convolution in it gives "
            "its output to a batch normalisation alone. Remove it from the list."
        )
    return [(f"{name}.{one}", f"{name}.{other}") for one, other in pairs]


class _Tracer(torch.fx.Tracer):
    @override
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # That over processes is of another package.
        return is_batch_norm(m) or super().is_leaf_module(m, module_qualified_name)


def _pairs_of(module: nn.Module) -> Pairs:
    # What a forward does to its module while it is traced, it does to the copy.
    shared: dict[int, Any] = {id(one): one for one in module.parameters()}
    copied = copy.deepcopy(module, shared)
    unmake_variants(copied)
    with torch.random.fork_rng(devices=[]):
        training, evaluation = (_traced(copied, is_training) for is_training in (True, False))
    return [pair for pair in training if pair in evaluation]


def _traced(module: nn.Module, is_training: bool) -> Pairs:  # noqa: FBT001 - private
    module.train(is_training)
    nodes = list(_Tracer().trace(module).nodes)
    calls: dict[Any, nn.Module] = {
        node: module.get_submodule(node.target) for node in nodes if node.op == "call_module"
    }
    num_calls = Counter(map(id, calls.values()))
    pairs = []
    for node, norm in calls.items():
        source: Any = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        convolution = calls.get(source) if isinstance(source, torch.fx.Node) else None
        if (
            is_batch_norm(norm)
            and type(convolution) in CONVOLUTIONS
            and len(source.users) == 1
            and (len(source.args), len(source.kwargs)) == (1, 0)
            and num_calls[id(norm)] == num_calls[id(convolution)] == 1
        ):
            pairs.append((source.target, node.target))
    return pairs


def _remedy(module: nn.Module, name: str) -> str:
    usable = []
    for child_name, child in module.named_modules():
        is_part = child_name and "." not in child_name and has_forward(child)
        if is_part and _has_pairs(child):
            usable.append(f"{name}.{child_name}")
    if usable:
        return f"These parts of it can be traced: {usable}; name them instead."
    return (
        "Name modules in it whose forward takes no decision that depends on its inputs, or remove "
        "it from the list."
    )


def _has_pairs(module: nn.Module) -> bool:
    try:
        return bool(_pairs_of(module))
    except Exception:  # noqa: BLE001 - whatever a forward does with what is no tensor
        return False
