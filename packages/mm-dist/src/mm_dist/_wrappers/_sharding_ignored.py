"""Parameters that stay whole on every rank."""

import inspect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from mm_dist._errors import ConfigError, TorchVersionError
from mm_dist._info import is_main_process
from mm_dist._wrappers._sharding_selection import find_named

_ARGUMENTS = ("ignored_modules", "ignored_parameters", "ignored_states")


def find_ignored(root: nn.Module, arguments: Mapping[str, Any]) -> set[nn.Parameter]:
    """Return the parameters of ``root`` that are not sharded.

    Those of a ``data_preprocessor`` are among them: it is called outside the model's forward, when
    the model's parameters are not gathered.

    Args:
        root: The model.
        arguments: ``ignored_modules``, ``ignored_parameters``, ``ignored_states``: ``None``, or
            modules, parameters, and patterns on names of them.

    Raises:
        ConfigError: If a pattern matches nothing, an item is of another kind, or the
            preprocessor is to be trained.
    """
    parameters = dict(root.named_parameters(remove_duplicate=False))
    chosen = set(_preprocessor_parameters(root))
    given: set[nn.Parameter] = set()
    for argument in _ARGUMENTS:
        for item in _as_items(arguments.get(argument)):
            given |= _parameters_of(root, item, parameters, argument)
    _warn_of_trainable([n for n, one in parameters.items() if one in given and one.requires_grad])
    return chosen | given


def _as_items(given: Any) -> Iterable[Any]:
    if given is None:
        return ()
    is_single = isinstance(given, (str, nn.Module, torch.Tensor))
    return [given] if is_single or not isinstance(given, Iterable) else given


def _parameters_of(
    root: nn.Module, item: Any, parameters: Mapping[str, nn.Parameter], argument: str
) -> set[nn.Parameter]:
    if isinstance(item, nn.Module):
        return set(item.parameters())
    if isinstance(item, nn.Parameter):
        return {item}
    if not isinstance(item, str):
        raise ConfigError(
            f"{argument} holds {item!r}; give modules, parameters, or patterns on their names."
        )
    if argument == "ignored_parameters":
        return {parameters[name] for name in find_named(parameters, item, argument)}
    modules = {name: module for name, module in root.named_modules() if name}
    names = find_named(modules, item, argument)
    return {parameter for name in names for parameter in modules[name].parameters()}


def _preprocessor_parameters(root: nn.Module) -> list[nn.Parameter]:
    preprocessor = getattr(root, "data_preprocessor", None)
    found = list(preprocessor.parameters()) if isinstance(preprocessor, nn.Module) else []
    if any(parameter.requires_grad for parameter in found):
        raise ConfigError(
            f"The data_preprocessor of {type(root).__name__} has parameters to train. It is called "
            "outside the model's forward, where sharded parameters cannot be used; freeze it "
            "(requires_grad_(False)), or call it within forward under another name."
        )
    return found


def _warn_of_trainable(names: list[str]) -> None:
    if names and is_main_process():
        warnings.warn(
            f"Ignored parameters stay whole on every rank, and nothing averages their gradients: "
            f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''}. Freeze them "
            "(requires_grad_(False)), or average their gradients before each step, and give them "
            "an optimizer of their own: torch neither clips nor unscales both kinds together.",
            stacklevel=2,
        )


def ignored_argument(fully_shard: Any, ignored: set[nn.Parameter]) -> dict[str, Any]:
    """Return the argument of ``fully_shard`` that makes it leave parameters alone.

    Raises:
        TorchVersionError: If there are some, and torch has no such argument.
    """
    if not ignored:
        return {}
    if "ignored_params" not in inspect.signature(fully_shard).parameters:
        raise TorchVersionError(
            "Parameters that are not sharded (ignored_modules, ignored_parameters, or those of a "
            f"data_preprocessor) need torch 2.7 or newer; this is {torch.__version__}."
        )
    return {"ignored_params": ignored}


def place_ignored(ignored: set[nn.Parameter], device: torch.device) -> None:
    """Move parameters that are not sharded to the device where the others are gathered."""
    for parameter in ignored:
        parameter.data = parameter.data.to(device)
