"""Which convolution's output goes to which batch normalisation, and nowhere else."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from mm_runner.checkpoint import rng_state, set_rng_state
from mm_runner.errors import ConfigError

from ._batch_norms import is_batch_norm
from ._conv_bn import Pair
from ._folded_kernel import CONVOLUTIONS
from ._named_modules import has_forward
from ._variants import unmake_variants

__all__ = ["check_pairs", "find_pairs"]

_LONGEST_REASON = 300


def find_pairs(module: nn.Module, name: str, where: str) -> list[Pair]:
    """Find convolutions in ``module`` that are followed by a batch normalisation of their own.

    The forward is traced by ``torch.fx`` on a copy, once for training and once for evaluation; what
    holds in both counts.

    Args:
        module: Is not changed.
        name: Its name in the model.
        where: The key that names it, for messages.

    Returns:
        Their names in the model.

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
    return [Pair(*(f"{name}.{part}".rstrip(".") for part in pair)) for pair in pairs]


def check_pairs(model: nn.Module, pairs: Iterable[Pair], where: str) -> list[Pair]:
    """Return each pair of each caller once, however many names lead to it.

    Args:
        model: What the names are of.
        pairs: Of all modules that were named.
        where: The key that names them, for messages.

    Raises:
        ConfigError: If a convolution or a normalisation is part of several.
    """
    checked: dict[tuple[nn.Module, ...], Pair] = {}
    partners: dict[nn.Module, tuple[nn.Module, str]] = {}
    for pair in pairs:
        caller, convolution, norm = map(model.get_submodule, pair)
        for one, other, name in (
            (convolution, norm, pair.convolution),
            (norm, convolution, pair.norm),
        ):
            partner, known_as = partners.setdefault(one, (other, name))
            if partner is not other:
                raise ConfigError(
                    f"{where}: {known_as!r} and {name!r} are one {type(one).__name__}, which "
                    f"belongs to several pairs. Name only one of the modules that share it."
                )
        checked.setdefault((caller, convolution, norm), pair)
    return list(checked.values())


class _Tracer(torch.fx.Tracer):
    """Notes in which forwards modules are called."""

    def __init__(self) -> None:
        super().__init__()
        self._callers: dict[str, tuple[str, ...]] = {}
        self._running = [""]

    def caller_of(self, *names: str) -> str:
        """Return the innermost of the modules in whose forward all of ``names`` are called."""
        found = ""
        for callers in zip(*(self._callers[name] for name in names)):  # noqa: B905 - the common part
            if len(set(callers)) > 1:
                break
            # One that does not hold them cannot look for them.
            if all(name.startswith(f"{callers[0]}.") for name in names):
                found = callers[0]
        return found

    @override
    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        name = self.path_of_module(m)
        self._callers[name] = tuple(self._running)
        self._running.append(name)
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._running.pop()

    @override
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # That over processes is of another package.
        return is_batch_norm(m) or super().is_leaf_module(m, module_qualified_name)


def _pairs_of(module: nn.Module) -> list[Pair]:
    # What a forward does to its module while it is traced, it does to the copy.
    shared: dict[int, Any] = {id(one): one for one in module.parameters()}
    # Of what was computed (by torch.nn.utils.weight_norm, say) torch makes no copies.
    shared.update(
        (id(value), value)
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, Tensor) and not value.is_leaf
    )
    copied = copy.deepcopy(module, shared)
    unmake_variants(copied)
    with _kept_random_numbers():
        training, evaluation = (_traced(copied, is_training) for is_training in (True, False))
    return [pair for pair in training if pair in evaluation]


@contextmanager
def _kept_random_numbers() -> Iterator[None]:
    device = torch.device("cpu")  # what is traced computes nothing on another
    before = rng_state(device)
    try:
        yield
    finally:
        set_rng_state(before, device)


def _traced(module: nn.Module, is_training: bool) -> list[Pair]:  # noqa: FBT001 - private
    module.train(is_training)
    tracer = _Tracer()
    nodes = list(tracer.trace(module).nodes)
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
            and "forward" not in {**vars(norm), **vars(convolution)}
            and num_calls[id(norm)] == num_calls[id(convolution)] == 1
        ):
            caller = tracer.caller_of(source.target, node.target)
            pairs.append(Pair(caller, source.target, node.target))
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
