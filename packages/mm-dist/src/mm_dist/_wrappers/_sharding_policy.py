"""Which modules form a group: gathered together, freed together."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from mm_dist._errors import ConfigError
from mm_dist._suggestion import suggest_name
from mm_dist._wrappers._sharding_selection import find_modules, has_forward

_ARGUMENT = "auto_wrap_policy"
# As in torch: below 100 million parameters, a separate group rarely pays.
_DEFAULT_MIN_NUM_PARAMS = 100_000_000
_KINDS = ("transformer", "size_based")


def choose_modules(
    root: nn.Module, policy: Any, candidates: Mapping[str, nn.Module]
) -> list[nn.Module]:
    """Return the modules inside ``root`` that a policy makes groups of.

    Args:
        root: The model; never among the result.
        policy: ``None``; a class, name or pattern, or several of them; a dict with ``type`` or
            ``min_num_params``; or a function of a module.
        candidates: The modules that may be chosen, by name, in the model's order.

    Raises:
        ConfigError: If it is none of these, or names something that the model has not.
    """
    if policy is None:
        return []
    if isinstance(policy, Mapping):
        return _choose_by_dict(root, policy, candidates)
    if callable(policy) and not isinstance(policy, type):
        if "recurse" in inspect.signature(policy).parameters:
            raise ConfigError(
                f"{_ARGUMENT}={policy!r} is a policy of torch's first FSDP; give a function that "
                "takes a module, class names, or dict(min_num_params=...)."
            )
        return [one for one in candidates.values() if has_forward(one) and policy(one)]
    if isinstance(policy, (str, type, Iterable)):
        return _choose_by_name(policy, candidates)
    raise ConfigError(
        f"{_ARGUMENT}={policy!r} cannot be used; give class names or patterns such as "
        "['TransformerBlock', 'backbone.stages.*'], dict(min_num_params=1_000_000), a function "
        "that takes a module and returns a boolean, or None."
    )


def _choose_by_name(given: Any, candidates: Mapping[str, nn.Module]) -> list[nn.Module]:
    selectors = [given] if isinstance(given, (str, type)) else list(given)
    wrong = [one for one in selectors if not isinstance(one, (str, type))]
    if wrong or not selectors:
        raise ConfigError(
            f"{_ARGUMENT} holds {wrong[0] if wrong else 'nothing'!r}; give classes, names of "
            "classes, or patterns on module names."
        )
    return find_modules(candidates, selectors, _ARGUMENT)


def _choose_by_dict(
    root: nn.Module, policy: Mapping[str, Any], candidates: Mapping[str, nn.Module]
) -> list[nn.Module]:
    arguments = dict(policy)
    kind = arguments.pop("type", "size_based" if "min_num_params" in arguments else None)
    name = str(kind).removesuffix("_auto_wrap_policy")
    if name not in _KINDS:
        raise ConfigError(
            f"{_ARGUMENT} has type {kind!r}; there are: {', '.join(_KINDS)}, or give a function of "
            f"a module.{suggest_name(name, _KINDS)}"
        )
    if name == "size_based":
        least = arguments.pop("min_num_params", _DEFAULT_MIN_NUM_PARAMS)
        is_number = isinstance(least, (int, float)) and not isinstance(least, bool)
        if arguments or not is_number or least < 1:
            raise ConfigError(
                f"{_ARGUMENT} by size takes min_num_params, a positive number; got {policy!r}."
            )
        eligible = {module for module in candidates.values() if has_forward(module)} - {root}
        chosen: set[nn.Module] = set()
        _choose_by_size(root, least, eligible, chosen)
        return [module for module in candidates.values() if module in chosen]
    if list(arguments) != ["transformer_layer_cls"]:
        raise ConfigError(
            f"{_ARGUMENT} of type {kind!r} takes transformer_layer_cls, got "
            f"{', '.join(arguments) or 'nothing'}."
        )
    return _choose_by_name(arguments["transformer_layer_cls"], candidates)


def _choose_by_size(
    module: nn.Module, least: float, eligible: set[nn.Module], chosen: set[nn.Module]
) -> int:
    """Choose modules with enough parameters that nothing inside them took, inner ones first.

    Returns:
        How many of the module's parameters have been taken.
    """
    numel = sum(parameter.numel() for parameter in module.parameters())
    if module in chosen:  # the same module at a second place
        return numel
    if numel < least:
        return 0
    taken = sum(_choose_by_size(child, least, eligible, chosen) for child in module.children())
    if module in eligible and numel - taken >= least:
        chosen.add(module)
        return numel
    return taken
