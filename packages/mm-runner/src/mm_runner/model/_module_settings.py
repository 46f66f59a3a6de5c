"""Apply the configuration's settings of single modules: checkpointing, folded normalizations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from ._checkpointing import checkpoint_module, checkpointed_names
from ._conv_bn import Pair, find_pairs, fold_pairs, folded_names
from ._named_modules import check_module_names, find_modules, shorten_names
from ._wrapped_forward import restore_forwards

__all__ = [
    "MODULE_SETTINGS",
    "apply_module_settings",
    "check_module_settings",
    "describe_module_settings",
    "plan_module_settings",
]

_CHECKPOINTING, _CONV_BN = "activation_checkpointing", "efficient_conv_bn_eval"
# The keys, and their labels in the log and in plans.
MODULE_SETTINGS = {_CHECKPOINTING: "checkpointed", _CONV_BN: "conv-bn-eval"}


def check_module_settings(cfg: Mapping[str, Any]) -> None:
    """Check the two keys as far as that needs no model.

    Raises:
        ConfigError: If one of them holds something else than names of modules.
    """
    check_module_names(cfg.get(_CHECKPOINTING), _CHECKPOINTING, allow_auto=True)
    check_module_names(cfg.get(_CONV_BN), _CONV_BN)


def apply_module_settings(model: nn.Module, cfg: Mapping[str, Any]) -> None:
    """Apply ``activation_checkpointing`` and ``efficient_conv_bn_eval``, and undo an earlier run's.

    Args:
        model: Not wrapped and not compiled; changed in place.
        cfg: The full configuration; ``{}`` only undoes.

    Raises:
        ConfigError: If a name matches no module, or a module cannot be changed so; the model is
            unchanged then.
    """
    checkpointed, pairs = _find(model, cfg)
    restore_forwards(model)
    fold_pairs(pairs)
    for name, module in checkpointed.items():
        checkpoint_module(module, name)


def plan_module_settings(model: nn.Module, cfg: Mapping[str, Any]) -> dict[str, str]:
    """Return which modules :func:`apply_module_settings` would change, by key, as text.

    Raises:
        ConfigError: As that does.
    """
    checkpointed, pairs = _find(model, cfg)
    return _describe(checkpointed, [pair.name for pair in pairs])


def describe_module_settings(model: nn.Module) -> dict[str, str]:
    """Return which modules of ``model``, which is not wrapped, are changed, by key, as text."""
    return _describe(checkpointed_names(model), folded_names(model))


def _find(model: nn.Module, cfg: Mapping[str, Any]) -> tuple[dict[str, nn.Module], list[Pair]]:
    names = check_module_names(cfg.get(_CHECKPOINTING), _CHECKPOINTING, allow_auto=True)
    checkpointed = find_modules(model, names, _CHECKPOINTING)
    names = check_module_names(cfg.get(_CONV_BN), _CONV_BN)
    traced = find_modules(model, names, _CONV_BN)
    pairs = [pair for name, module in traced.items() for pair in find_pairs(module, name)]
    return checkpointed, list({id(pair.convolution): pair for pair in pairs}.values())


def _describe(checkpointed: Iterable[str], folded: Iterable[str]) -> dict[str, str]:
    named = {_CHECKPOINTING: list(checkpointed), _CONV_BN: list(folded)}
    return {key: shorten_names(names) for key, names in named.items() if names}
