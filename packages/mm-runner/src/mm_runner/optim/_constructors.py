"""Build an optimizer with parameter groups, and its wrapper."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

import mm_dist
from mm_runner._torch_private import children_of, parameters_of
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.model import unwrap_model
from mm_runner.registry import OPTIM_WRAPPERS, OPTIMIZERS, build_from_cfg, check_cfg, short_repr

__all__ = ["DefaultOptimWrapperConstructor", "NamedParameter", "walk_parameters"]

_NUMBERS = (
    "lr_mult",
    "decay_mult",
    "bias_lr_mult",
    "bias_decay_mult",
    "norm_decay_mult",
    "flat_decay_mult",
    "dwconv_decay_mult",
    "dcn_offset_lr_mult",
)
_KEYS = (*_NUMBERS, "bypass_duplicate", "custom_keys")
# What a group may multiply, and the setting of the optimizer that it multiplies.
_MULTIPLIERS = {"lr_mult": "lr", "decay_mult": "weight_decay"}
# mmcv's and torchvision's; known by name so that neither need be installed.
_DEFORMABLE = {"DeformConv2d", "ModulatedDeformConv2d"}
_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    nn.GroupNorm,
    nn.LayerNorm,
)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class NamedParameter(NamedTuple):
    """A parameter under one of its names; a shared one comes once under each."""

    name: str  # in the model, without wrappers
    parameter: nn.Parameter
    module: nn.Module  # that owns it
    in_deformable: bool  # whether that is a part of a deformable convolution


def walk_parameters(
    model: nn.Module, prefix: str = "", *, in_deformable: bool = False
) -> Iterator[NamedParameter]:
    """Yield every parameter under every name that it has, in the order of the modules."""
    module = unwrap_model(model)
    # Not named_parameters and named_children: these skip what they have met before.
    for name, parameter in parameters_of(module):
        yield NamedParameter(f"{prefix}{name}", parameter, module, in_deformable)
    kinds = {kind.__name__ for kind in type(module).__mro__}
    in_deformable = in_deformable or bool(kinds & _DEFORMABLE)
    for name, child in children_of(module):
        yield from walk_parameters(child, f"{prefix}{name}.", in_deformable=in_deformable)


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
            * ``bias_lr_mult``: for biases, except those of norms and of deformable convolutions'
              offsets;
            * ``norm_decay_mult``, ``bias_decay_mult``, ``dwconv_decay_mult``, ``flat_decay_mult``:
              for norms, biases, depth-wise convolutions, and parameters of one dimension; the
              first that applies counts;
            * ``dcn_offset_lr_mult``: for the offsets of deformable convolutions;
            * ``bypass_duplicate``: no effect; a shared parameter has one group anyway.
        where: Path of the config, for messages.

    Raises:
        ConfigError: If a key is unknown, or a factor has nothing to multiply.

    Example:
        >>> cfg = dict(optimizer=dict(type="SGD", lr=0.1, weight_decay=0.01))
        >>> constructor = DefaultOptimWrapperConstructor(cfg, dict(norm_decay_mult=0))
        >>> wrapper = constructor(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
        >>> [(group["weight_decay"], len(group["params"])) for group in wrapper.param_groups]
        [(0.01, 2), (0.0, 2)]
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
        self._cfg = optim_wrapper_cfg
        self._where = where
        rules = paramwise_cfg or {}
        self._paramwise = {key: value for key, value in rules.items() if value is not None}
        self._optimizer = optim_wrapper_cfg["optimizer"]
        if isinstance(self._optimizer, Optimizer):
            if self._paramwise:
                raise ConfigError(
                    f"{where}.paramwise_cfg: a ready {type(self._optimizer).__name__} was given, "
                    "which has its parameter groups; give the optimizer as a dict."
                )
            return
        component, _ = check_cfg(
            self._optimizer, OPTIMIZERS, {"params": ()}, where=f"{where}.optimizer"
        )
        self._known = inspect.signature(component).parameters
        self._base: dict[str, Any] = {}  # the optimizer's own values, given or by default
        for name in _MULTIPLIERS.values():
            default = self._known[name].default if name in self._known else None
            value = default if self._optimizer.get(name) is None else self._optimizer[name]
            self._base[name] = value if isinstance(value, (int, float, Tensor)) else None
        self._check_paramwise()

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

    def settings_of(self, one: NamedParameter) -> dict[str, Any]:
        """Return the settings in which a parameter differs from the optimizer's own."""
        custom = self._paramwise.get("custom_keys", {})
        found = sorted((key for key in custom if key in one.name), key=lambda key: (-len(key), key))
        given = custom[found[0]] if found else self._multipliers_by_kind(one)
        settings = {key: value for key, value in given.items() if key not in _MULTIPLIERS}
        for multiplier, name in _MULTIPLIERS.items():
            if multiplier in given:
                settings[name] = self._base[name] * given[multiplier]
        return settings

    def _multipliers_by_kind(self, one: NamedParameter) -> dict[str, Any]:
        """Return the first given multiplier that applies to a parameter of this kind."""
        name, parameter, module, in_deformable = one
        kind = type(module).__name__.rstrip("123d")
        is_norm = isinstance(module, _NORMS) or kind.endswith("Norm")
        is_bias = name.rpartition(".")[2] == "bias" and not in_deformable
        is_depthwise = isinstance(module, _CONVOLUTIONS) and module.in_channels == module.groups > 1
        applies = {
            "lr_mult": {
                "dcn_offset_lr_mult": in_deformable and "conv_offset" in name,
                "bias_lr_mult": is_bias and not is_norm,
                "lr_mult": True,
            },
            "decay_mult": {
                "norm_decay_mult": is_norm,
                "bias_decay_mult": is_bias,
                "dwconv_decay_mult": is_depthwise,
                "flat_decay_mult": parameter.ndim == 1 and not in_deformable,
                "decay_mult": True,
            },
        }
        return {
            multiplier: self._paramwise[key]
            for multiplier, rules in applies.items()
            for key in [one for one, holds in rules.items() if holds and one in self._paramwise][:1]
        }

    def _parameters(self, model: nn.Module) -> list[Any]:
        """Return the parameters; the trainable ones, in groups, if ``paramwise_cfg`` is given."""
        named = [one for one in walk_parameters(model) if one.parameter.requires_grad]
        if not named:
            raise ConfigError(
                f"{self._where}: {type(model).__name__} has no parameter with requires_grad=True; "
                "unfreeze at least one, or do not train."
            )
        if not self._paramwise:  # integers, as of quantised weights, are never trained
            return [
                one for one in model.parameters() if one.is_floating_point() or one.is_complex()
            ]
        settings: dict[nn.Parameter, dict[str, Any]] = {}
        for one in named:
            if one.parameter not in settings:
                settings[one.parameter] = self.settings_of(one)
        parts = {part for one in named for part in one.name.split(".")}
        for key in sorted(self._paramwise.get("custom_keys", ())):
            if not any(key in one.name for one in named) and mm_dist.is_main_process():
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

    def _check_paramwise(self) -> None:
        where = f"{self._where}.paramwise_cfg"
        for key, value in self._paramwise.items():
            if key not in _KEYS:
                raise ConfigError(
                    f"{where}.{key}: unknown key; known are {', '.join(_KEYS)}."
                    f"{did_you_mean(str(key), _KEYS)}"
                )
            if key in _NUMBERS:
                self._check_multiplier(key, value, where)
        custom = self._paramwise.get("custom_keys", {})
        if not isinstance(custom, Mapping):
            raise ConfigError(
                f"{where}.custom_keys: a dict of dicts by a part of a parameter's name is needed, "
                f"such as {{'backbone': dict(lr_mult=0.1)}}, got {short_repr(custom)}."
            )
        for name, settings in custom.items():
            self._check_settings(settings, f"{where}.custom_keys.{name}")

    def _check_settings(self, settings: Any, where: str) -> None:
        known = [*_MULTIPLIERS, *(name for name in self._known if name != "params")]
        if not isinstance(settings, Mapping):
            raise ConfigError(f"{where}: a dict such as dict(lr_mult=0.1), got {settings!r}.")
        for key, value in settings.items():
            hint = did_you_mean(str(key), known)
            is_rule = isinstance(value, Mapping) and not value.keys().isdisjoint(_MULTIPLIERS)
            # A setting that the optimizer does not know may be for a hook to read.
            if key not in known and (hint or is_rule):
                names = ", ".join(known)
                raise ConfigError(f"{where}.{key}: unknown key; known are {names}.{hint}")
            if key in _MULTIPLIERS:
                self._check_multiplier(key, value, where)
            elif isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{where}.{key}: a finite number is needed, got {value!r}.")

    def _check_multiplier(self, key: str, value: Any, where: str) -> None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise ConfigError(f"{where}.{key}: a finite number is needed, got {value!r}.")
        setting = "lr" if key.endswith("lr_mult") else "weight_decay"
        if self._base[setting] is None:
            raise ConfigError(
                f"{where}.{key}: it multiplies {setting}, which the optimizer was not given; give "
                "it."
            )
