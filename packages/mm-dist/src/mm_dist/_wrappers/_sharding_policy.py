"""Which modules form a group of their own: gathered together, freed together."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn

from mm_dist._errors import ConfigError
from mm_dist._suggestion import suggest_name
from mm_dist._wrappers._sharding_selection import find_modules, has_forward

_ARGUMENT = "auto_wrap_policy"
# As in torch: below 100 million parameters, a group of its own rarely pays.
_DEFAULT_MIN_NUM_PARAMS = 100_000_000
_KINDS = ("transformer", "module", "size_based", "lambda", "always")
_KIND_SUFFIXES = ("_policy", "_wrap", "_auto")


def choose_modules(
    root: nn.Module, policy: Any, candidates: Mapping[str, nn.Module]
) -> list[nn.Module]:
    """Return the modules inside ``root`` that a policy makes groups of.

    Args:
        root: The model; never among the result.
        policy: ``None``; a class, name or pattern, or several of them; a dict with ``type`` or
            ``min_num_params``; or a callable, of a module or of torch's first policies' kind.
        candidates: The modules that may be chosen, by name, in the model's order.

    Raises:
        ConfigError: If it is none of these, or names something that the model has not.
    """
    if policy is None:
        return []
    if isinstance(policy, (str, type)):
        return find_modules(candidates, [policy], _ARGUMENT)
    if isinstance(policy, Mapping):
        return _choose_by_dict(root, policy, candidates)
    if callable(policy):
        return _choose_by_function(root, policy, candidates)
    if isinstance(policy, Iterable):
        return find_modules(candidates, _check_selectors(list(policy)), _ARGUMENT)
    raise ConfigError(
        f"{_ARGUMENT}={policy!r} cannot be used; give class names or patterns such as "
        "['TransformerBlock', 'backbone.stages.*'], dict(min_num_params=1_000_000), a function "
        "that takes a module and returns a boolean, or None."
    )


def _check_selectors(given: Any) -> list[Any]:
    selectors = [given] if isinstance(given, (str, type)) else list(given)
    wrong = [one for one in selectors if not isinstance(one, (str, type))]
    if wrong or not selectors:
        raise ConfigError(
            f"{_ARGUMENT} holds {wrong[0] if wrong else 'nothing'!r}; give classes, names of "
            "classes, or patterns on module names."
        )
    return selectors


def _choose_by_dict(
    root: nn.Module, policy: Mapping[str, Any], candidates: Mapping[str, nn.Module]
) -> list[nn.Module]:
    arguments = dict(policy)
    kind = arguments.pop("type", "size_based" if "min_num_params" in arguments else None)
    if callable(kind):
        function = kind(**arguments) if isinstance(kind, type) else partial(kind, **arguments)
        return _choose_by_function(root, function, candidates)
    name = str(kind)
    for suffix in _KIND_SUFFIXES:
        name = name.removesuffix(suffix)
    if name not in _KINDS:
        raise ConfigError(
            f"{_ARGUMENT} has type {kind!r}; there are: {', '.join(_KINDS)} (torch's full names "
            f"too), or give a function.{suggest_name(name, _KINDS)}"
        )
    if name in ("transformer", "module"):
        key = "transformer_layer_cls" if name == "transformer" else "module_classes"
        classes = _only_argument(arguments, key, kind)
        return find_modules(candidates, _check_selectors(classes), _ARGUMENT)
    if name == "lambda":
        return _choose_by_function(root, _only_argument(arguments, "lambda_fn", kind), candidates)
    if name == "always":
        return [module for module in candidates.values() if has_forward(module)]
    return _choose_by_function(root, _size_policy(arguments), candidates)


def _only_argument(arguments: dict[str, Any], key: str, kind: Any) -> Any:
    if list(arguments) != [key]:
        raise ConfigError(
            f"{_ARGUMENT} of type {kind!r} takes {key}, got {', '.join(arguments) or 'nothing'}."
        )
    return arguments[key]


def _size_policy(arguments: dict[str, Any]) -> Callable[..., bool]:
    least = arguments.pop("min_num_params", _DEFAULT_MIN_NUM_PARAMS)
    is_number = isinstance(least, (int, float)) and not isinstance(least, bool)
    if arguments or not is_number or least < 1:
        raise ConfigError(
            f"{_ARGUMENT} by size takes min_num_params, a positive number; got "
            f"{ ({'min_num_params': least, **arguments})!r}."
        )

    def is_large(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:  # noqa: ARG001, FBT001
        return bool(nonwrapped_numel >= least)

    return is_large


def _choose_by_function(
    root: nn.Module, function: Callable[..., Any], candidates: Mapping[str, nn.Module]
) -> list[nn.Module]:
    if "recurse" not in inspect.signature(function).parameters:
        return [one for one in candidates.values() if has_forward(one) and function(one)]
    chosen: set[nn.Module] = set()
    eligible = {module for module in candidates.values() if has_forward(module)}
    _ask_from_below(root, function, eligible - {root}, chosen)
    return [module for module in candidates.values() if module in chosen]


def _ask_from_below(
    module: nn.Module,
    function: Callable[..., Any],
    eligible: set[nn.Module],
    chosen: set[nn.Module],
) -> int:
    """Ask a policy of torch's first kind about a module, what is inside it first.

    Such a policy says whether to look inside (``recurse=True``), then whether to take the module
    for the parameters that nothing inside it took.

    Returns:
        How many of the module's parameters have been taken.
    """
    numel = sum(parameter.numel() for parameter in module.parameters())
    if module in chosen:  # the same module at a second place
        return numel
    if not function(module=module, recurse=True, nonwrapped_numel=numel):
        return 0
    taken = sum(_ask_from_below(c, function, eligible, chosen) for c in module.children())
    rest = max(numel - taken, 0)
    if module in eligible and function(module=module, recurse=False, nonwrapped_numel=rest):
        chosen.add(module)
        return numel
    return taken
