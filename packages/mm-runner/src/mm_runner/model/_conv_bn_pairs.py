"""Which convolution's output goes to which batch normalisation, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from mm_runner.errors import ConfigError

from ._batch_norms import is_batch_norm
from ._conv_bn import Pair
from ._conv_bn_tracing import copy_to_trace, traced_pairs
from ._named_modules import has_forward
from ._traced_calls import CallForm, TracedForms

__all__ = ["check_pairs", "find_pairs", "without_parted"]

_LONGEST_REASON = 300
# Names of a convolution's caller, of itself and of its normalisation, and when they are a pair.
_Traced = dict[tuple[str, str, str], TracedForms]


def find_pairs(module: nn.Module, name: str, where: str) -> list[Pair]:
    """Find convolutions in ``module`` that are followed by a batch normalisation of their own.

    The forward is traced by ``torch.fx`` on a copy: for training and for evaluation, with gradients
    and without; what holds each time counts. That is done with its optional arguments and without
    them, for some may be pairs in calls of one form only.

    Args:
        module: Is not changed.
        name: Its name in the model.
        where: The key that names it, for messages.

    Returns:
        Their names in the model. Those that are pairs in each call of the forward that calls both,
        whatever calls that, are traced for it.

    Raises:
        ConfigError: If it cannot be traced, or there is no such pair.
    """
    try:
        copied = copy_to_trace(module)
    except Exception as error:
        raise ConfigError(
            f"{where}: {name!r} ({type(module).__name__}) was given, and its forward is traced on "
            f"a copy, which cannot be made: {_in_short(error)}. Let that attribute of it be copied "
            "(by __deepcopy__) or made in the forward, or name modules that do not hold it."
        ) from error
    try:
        pairs = traced_pairs(copied)
    except Exception as error:
        raise ConfigError(
            f"{where}: {name!r} ({type(module).__name__}) was given, and torch.fx cannot trace its "
            f"forward: {_in_short(error)}. {_remedy(module, name)}"
        ) from error
    if not pairs:
        raise ConfigError(
            f"{where}: {name!r} ({type(module).__name__}) was given; no convolution in it gives "
            "its output to a batch normalisation alone. Remove it from the list."
        )
    by_caller: dict[str, _Traced] = {}
    found = []
    for parts, forms in pairs.items():
        caller_name, convolution, norm = (f"{name}.{part}".rstrip(".") for part in parts)
        within, caller = parts[0], copied.get_submodule(parts[0])
        if within and within not in by_caller:
            by_caller[within] = _traced_alone(caller, within)
        alone = by_caller[within].get(parts) if within else None
        if alone is not None:
            found.append(Pair(caller_name, convolution, norm, caller_name, alone))
        if alone is None or not CallForm(caller).is_only:
            found.append(Pair(caller_name, convolution, norm, name, forms))
    return found


def _traced_alone(caller: nn.Module, name: str) -> _Traced:
    try:
        pairs = traced_pairs(caller)
    except Exception:  # noqa: BLE001 - whatever a forward does with what is no tensor
        return {}
    return {
        (f"{name}.{within}".rstrip("."), f"{name}.{convolution}", f"{name}.{norm}"): forms
        for (within, convolution, norm), forms in pairs.items()
    }


def check_pairs(model: nn.Module, pairs: Iterable[Pair], where: str) -> list[Pair]:
    """Return each pair of each module that was named once, however many names lead to it.

    Args:
        model: What the names are of.
        pairs: Of all modules that were named.
        where: The key that names them, for messages.

    Raises:
        ConfigError: If a convolution or a normalisation is part of several.
    """
    checked: dict[tuple[Any, ...], Pair] = {}
    partners: dict[nn.Module, tuple[nn.Module, str]] = {}
    for pair in pairs:
        caller, convolution, norm = map(model.get_submodule, pair[:3])
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
        checked.setdefault((caller, convolution, norm, model.get_submodule(pair.traced)), pair)
    return list(checked.values())


def without_parted(
    model: nn.Module, pairs: list[Pair], checkpointed: Iterable[nn.Module], where: str
) -> list[Pair]:
    """Return those pairs of which both are computed again together, or neither.

    Args:
        model: What the names are of.
        pairs: Of modules in it.
        checkpointed: What is computed again in backward, each by itself.
        where: The key that names the modules of the pairs, for messages.

    Raises:
        ConfigError: If none is left.
    """
    again = set(map(id, checkpointed))
    left = [pair for pair in pairs if not _is_parted(model, pair, again)]
    if pairs and not left:
        raise ConfigError(
            f"{where}: {pairs[0].convolution!r} and {pairs[0].norm!r} cannot be computed as one, "
            "for activation_checkpointing names one of them, or a part that holds it. Checkpoint "
            f"{pairs[0].caller!r}, whose forward calls both, or remove one of the keys."
        )
    return left


def _is_parted(model: nn.Module, pair: Pair, again: set[int]) -> bool:
    start = pair.caller.count(".") + 1 if pair.caller else 0
    for name in (pair.convolution, pair.norm):
        parts = name.split(".")
        around = (".".join(parts[:end]) for end in range(start + 1, len(parts) + 1))
        if any(id(model.get_submodule(one)) in again for one in around):
            return True
    return False


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_REASON]


def _remedy(module: nn.Module, name: str) -> str:
    usable = list(_usable(module, name))
    if usable:
        return f"These parts of it can be traced: {usable}; name them instead."
    return (
        "Name modules in it whose forward takes no decision that depends on its inputs, or remove "
        "it from the list."
    )


def _usable(module: nn.Module, name: str) -> Iterator[str]:
    for child_name, child in module.named_children():
        if has_forward(child) and _has_pairs(child):
            yield f"{name}.{child_name}"
        elif any(map(is_batch_norm, child.modules())):
            yield from _usable(child, f"{name}.{child_name}")


def _has_pairs(module: nn.Module) -> bool:
    try:
        return bool(traced_pairs(copy_to_trace(module)))
    except Exception:  # noqa: BLE001 - whatever a forward does with what is no tensor
        return False
