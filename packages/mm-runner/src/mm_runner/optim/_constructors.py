"""Build an optimizer with parameter groups, and its wrapper."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

import mm_dist
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.model import unwrap_model
from mm_runner.registry import OPTIM_WRAPPERS, OPTIMIZERS, build_from_cfg, check_cfg, need_mapping

__all__ = ["DefaultOptimWrapperConstructor"]

_FACTORS = {
    "lr_mult",
    "decay_mult",
    "bias_lr_mult",
    "bias_decay_mult",
    "norm_decay_mult",
    "flat_decay_mult",
    "dwconv_decay_mult",
}
_KEYS = (*sorted(_FACTORS), "bypass_duplicate", "custom_keys")
# What a group may multiply, and the setting of the optimizer that it multiplies.
_MULTIPLIERS = {"lr_mult": "lr", "decay_mult": "weight_decay"}


def _walk(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter, Any]]:
    """Yield the name, parameter and owner, in the order of the modules, without wrappers.

    A shared parameter comes once under each name.
    """
    module = unwrap_model(module)
    for name, parameter in module.named_parameters(recurse=False):
        yield f"{prefix}{name}", parameter, module
    for name, child in module.named_children():
        yield from _walk(child, f"{prefix}{name}.")


class DefaultOptimWrapperConstructor:
    """Builds an optimizer over the parameters of a model, and its wrapper.

    Parameters with equal settings share a parameter group, so that the optimizer works on few long
    lists. As in MMEngine, frozen parameters are kept without a ``paramwise_cfg``, so that they can
    be unfrozen later, and left out with one. A shared parameter counts under its first name.

    Args:
        optim_wrapper_cfg: ``optimizer`` (a config), ``type`` (``"OptimWrapper"`` by default) and
            the wrapper's arguments.
        paramwise_cfg: Factors by which parameters differ, all optional:

            * ``custom_keys``: ``{part of a name: dict(lr_mult=..., decay_mult=..., **settings)}``;
              the longest key that is part of the parameter's name decides alone;
            * ``lr_mult``, ``decay_mult``: for parameters that no other key applies to;
            * ``bias_lr_mult``: for biases, except those of norms;
            * ``norm_decay_mult``, ``bias_decay_mult``, ``dwconv_decay_mult``, ``flat_decay_mult``:
              for norms, biases, depth-wise convolutions, and parameters of one dimension; the
              first that applies counts;
            * ``bypass_duplicate``: no effect; a shared parameter has one group anyway.
        where: Path of the config, for messages.

    Raises:
        ConfigError: If a key is unknown, or a factor has nothing to multiply.
    """

    def __init__(
        self,
        optim_wrapper_cfg: Mapping[str, Any],
        paramwise_cfg: Mapping[str, Any] | None = None,
        *,
        where: str = "optim_wrapper",
    ) -> None:
        if "optimizer" not in optim_wrapper_cfg:
            given = ", ".join(map(repr, optim_wrapper_cfg)) or "none"
            raise ConfigError(
                f"{where}.optimizer: this key is missing; given: {given}. It is a dict such as "
                "dict(type='SGD', lr=0.01)."
            )
        if paramwise_cfg is not None and not isinstance(paramwise_cfg, Mapping):
            raise ConfigError(f"{where}.paramwise_cfg: a dict is needed, got {paramwise_cfg!r}.")
        self._cfg, self._where = optim_wrapper_cfg, where
        rules = paramwise_cfg or {}
        self._paramwise = {key: value for key, value in rules.items() if value is not None}
        self._optimizer = optim_wrapper_cfg["optimizer"]
        if not isinstance(self._optimizer, Optimizer):
            component, _ = check_cfg(
                self._optimizer, OPTIMIZERS, {"params": ()}, where=f"{where}.optimizer"
            )
            if self._paramwise:
                self._check_paramwise(inspect.signature(component).parameters)
        elif self._paramwise:
            raise ConfigError(
                f"{where}.paramwise_cfg: a ready {type(self._optimizer).__name__} was given, "
                "which has its parameter groups; give the optimizer as a dict."
            )

    def __call__(self, model: nn.Module) -> Any:
        """Build the optimizer over the parameters of ``model``, and its wrapper.

        Raises:
            ConfigError: If nothing in ``model`` is trainable, or a config does not fit.
        """
        optimizer = self._optimizer
        if not isinstance(optimizer, Optimizer):
            optimizer = build_from_cfg(
                optimizer,
                OPTIMIZERS,
                {"params": self._parameters(model)},
                where=f"{self._where}.optimizer",
            )
        return build_from_cfg(
            {**self._cfg, "optimizer": optimizer},
            OPTIM_WRAPPERS,
            {"type": "OptimWrapper"},
            where=self._where,
        )

    def _settings_of(self, name: str, parameter: nn.Parameter, module: Any) -> dict[str, Any]:
        """Return the settings in which a parameter differs from the optimizer's own."""
        custom = self._paramwise.get("custom_keys", {})
        found = sorted((key for key in custom if key in name), key=lambda key: (-len(key), key))
        if found:
            given = custom[found[0]]
        else:  # the first rule of each kind that is given and applies
            kinds = [kind.__name__.rstrip("123d") for kind in type(module).__mro__]
            is_norm = any(kind.endswith("Norm") for kind in kinds)
            is_bias = name.rpartition(".")[2] == "bias"
            is_conv = isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
            applies = {
                "bias_lr_mult": is_bias and not is_norm,
                "lr_mult": True,
                "norm_decay_mult": is_norm,
                "bias_decay_mult": is_bias,
                "dwconv_decay_mult": is_conv and module.in_channels == module.groups > 1,
                "flat_decay_mult": parameter.ndim == 1,
                "decay_mult": True,
            }
            given = {}
            for key, holds in applies.items():
                if holds and key in self._paramwise:
                    multiplier = "lr_mult" if key.endswith("lr_mult") else "decay_mult"
                    given.setdefault(multiplier, self._paramwise[key])
        settings = {key: value for key, value in given.items() if key not in _MULTIPLIERS}
        for multiplier, setting in _MULTIPLIERS.items():
            if multiplier in given:
                settings[setting] = self._base[setting] * given[multiplier]
        return settings

    def _parameters(self, model: nn.Module) -> list[Any]:
        """Return the parameters; the trainable ones, in groups, if ``paramwise_cfg`` is given."""
        if not any(one.requires_grad for one in model.parameters()):
            raise ConfigError(
                f"{self._where}: {type(model).__name__} has no parameter with requires_grad=True; "
                "unfreeze at least one, or do not train."
            )
        if not self._paramwise:  # integers, as of quantised weights, are never trained
            return [
                one for one in model.parameters() if one.is_floating_point() or one.is_complex()
            ]
        named = [one for one in _walk(model) if one[1].requires_grad]
        settings: dict[nn.Parameter, dict[str, Any]] = {}
        for one in named:
            if one[1] not in settings:
                settings[one[1]] = self._settings_of(*one)
        names = [name for name, *_ in named]
        parts = {part for name in names for part in name.split(".")}
        for key in sorted(self._paramwise.get("custom_keys", ())):
            if not any(key in name for name in names) and mm_dist.is_main_process():
                warnings.warn(
                    f"{self._where}.paramwise_cfg.custom_keys: {key!r} is part of no parameter's "
                    f"name.{did_you_mean(key, parts)}",
                    stacklevel=2,
                )
        groups: list[tuple[dict[str, Any], list[nn.Parameter]]] = []
        for parameter, own in settings.items():
            members = next((members for shared, members in groups if shared == own), None)
            if members is None:
                groups.append((own, members := []))
            members.append(parameter)
        return [{**shared, "params": members} for shared, members in groups]

    def _check_paramwise(self, known: Mapping[str, inspect.Parameter]) -> None:
        """Check the rules, and find what multipliers apply to."""
        self._base: dict[str, Any] = {}  # the optimizer's own values, given or by default
        for name in _MULTIPLIERS.values():
            default = known[name].default if name in known else None
            value = default if self._optimizer.get(name) is None else self._optimizer[name]
            self._base[name] = value if isinstance(value, (int, float, Tensor)) else None
        where = f"{self._where}.paramwise_cfg"
        for key in self._paramwise:
            if key not in _KEYS:
                hint = did_you_mean(str(key), _KEYS)
                raise ConfigError(
                    f"{where}.{key}: unknown key; known are {', '.join(_KEYS)}.{hint}"
                )
        self._check_factors(self._paramwise, where)
        custom = need_mapping(
            self._paramwise.get("custom_keys", {}),
            f"{where}.custom_keys",
            "a dict of dicts by a part of a parameter's name",
        )
        own = (*_MULTIPLIERS, *(name for name in known if name != "params"))
        for name, settings in custom.items():
            place = f"{where}.custom_keys.{name}"
            rules = need_mapping(settings, place, "a dict such as dict(lr_mult=0.1)")
            for key, value in rules.items():
                hint = did_you_mean(str(key), own)
                # Another setting may be for a hook to read, but no rules a level too deep.
                if key not in own and (hint or isinstance(value, Mapping)):
                    names = ", ".join(own)
                    raise ConfigError(f"{place}.{key}: unknown key; known are {names}.{hint}")
            self._check_factors(settings, place)

    def _check_factors(self, rules: Mapping[str, Any], where: str) -> None:
        for key, value in rules.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            is_no_number = key in _FACTORS and not is_number
            if is_no_number or (isinstance(value, float) and not math.isfinite(value)):
                raise ConfigError(f"{where}.{key}: a finite number is needed, got {value!r}.")
            setting = "lr" if str(key).endswith("lr_mult") else "weight_decay"
            if key in _FACTORS and self._base[setting] is None:
                raise ConfigError(
                    f"{where}.{key}: it multiplies {setting}, which the optimizer was not given; "
                    "give it."
                )
