"""What a configuration says about modules by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ._checkpointing import check_can_checkpoint, checkpoint_module, checkpointed_names
from ._conv_bn import Pair, fold_pairs, folded_names
from ._conv_bn_pairs import check_pairs, find_pairs, without_parted
from ._named_modules import check_module_names, find_modules, in_words
from ._variants import unmake_variants

__all__ = [
    "MODULE_SETTINGS",
    "apply_module_settings",
    "check_module_settings",
    "planned_module_settings",
    "told_module_settings",
]

_CHECKPOINTING, _CONV_BN = "activation_checkpointing", "efficient_conv_bn_eval"
# The keys, and what stands before the names of modules where they are told.
MODULE_SETTINGS = {_CHECKPOINTING: "checkpointed", _CONV_BN: "conv-bn-eval"}


def check_module_settings(cfg: Mapping[str, Any]) -> None:
    """Check what can be checked without the model.

    Raises:
        ConfigError: If one of the two keys holds something else than names.
    """
    check_module_names(cfg.get(_CHECKPOINTING), _CHECKPOINTING, auto=True)
    check_module_names(cfg.get(_CONV_BN), _CONV_BN)


def apply_module_settings(model: nn.Module, cfg: Mapping[str, Any]) -> None:
    """Do to modules of ``model`` what ``cfg`` says of them, and take back what another run did.

    Args:
        model: Not wrapped and not compiled; changed in place.
        cfg: The full configuration: ``activation_checkpointing`` and ``efficient_conv_bn_eval``
            count.

    Raises:
        ConfigError: If a name fits nothing, or what it fits cannot be changed so; nothing is
            changed then.
    """
    checkpointed, pairs = _find(model, cfg)
    unmake_variants(model)
    try:
        fold_pairs(model, pairs)
        for name in checkpointed:
            checkpoint_module(model.get_submodule(name), name)
    except Exception:
        unmake_variants(model)  # all or nothing
        raise


def planned_module_settings(model: nn.Module, cfg: Mapping[str, Any]) -> dict[str, str]:
    """Return what :func:`apply_module_settings` would do, in words, and change nothing.

    Raises:
        ConfigError: As that does.
    """
    checkpointed, pairs = _find(model, cfg)
    convolutions = {id(model.get_submodule(pair.convolution)): pair.convolution for pair in pairs}
    return _told(checkpointed, list(convolutions.values()))


def told_module_settings(model: nn.Module) -> dict[str, str]:
    """Return what was done to which modules of ``model``, in words, by the keys that ask for it.

    Args:
        model: Not wrapped.
    """
    return _told(checkpointed_names(model), folded_names(model))


def _find(model: nn.Module, cfg: Mapping[str, Any]) -> tuple[list[str], list[Pair]]:
    names = check_module_names(cfg.get(_CHECKPOINTING), _CHECKPOINTING, auto=True)
    blocks = find_modules(model, names, _CHECKPOINTING)
    for name, module in blocks.items():
        check_can_checkpoint(module, name, _CHECKPOINTING)
    names = check_module_names(cfg.get(_CONV_BN), _CONV_BN)
    traced = find_modules(model, names, _CONV_BN)
    pairs = [pair for name, module in traced.items() for pair in find_pairs(module, name, _CONV_BN)]
    pairs = check_pairs(model, pairs, _CONV_BN)
    return list(blocks), without_parted(model, pairs, blocks.values(), _CONV_BN)


def _told(checkpointed: list[str], folded: list[str]) -> dict[str, str]:
    named = {_CHECKPOINTING: checkpointed, _CONV_BN: folded}
    return {key: in_words(names) for key, names in named.items() if names}
