"""Build an optimizer with parameter groups, and its wrapper."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

import mm_dist
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.model import unwrap_model
from mm_runner.registry import (
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    build_from_cfg,
    check_cfg,
    check_section,
    need_mapping,
)

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


class DefaultOptimWrapperConstructor:
    """Builds an optimizer over the parameters of a model, and its wrapper.

    Parameters with equal settings share a parameter group, so that the optimizer works on few long
    lists. As in MMEngine, frozen parameters are kept without a ``paramwise_cfg``, so that they can
    be unfrozen later, and left out with one. A shared parameter counts under its first name.

    With a ``paramwise_cfg``, a subclass may override :meth:`add_params`, as in MMEngine; keys of
    its own are passed on.

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

    Attributes:
        optimizer_cfg: Config of the optimizer, or an optimizer.
        optim_wrapper_cfg: Config of the wrapper without it.
        paramwise_cfg: The factors that are given.
        base_lr: The optimizer's own learning rate, ``None`` if it has none. Likewise ``base_wd``,
            the weight decay.

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
        self.optim_wrapper_cfg, self._where = dict(optim_wrapper_cfg), where
        rules = {} if paramwise_cfg is None else paramwise_cfg
        need_mapping(rules, f"{where}.paramwise_cfg")
        self.paramwise_cfg = {key: value for key, value in rules.items() if value is not None}
        self.optimizer_cfg: Any = self.optim_wrapper_cfg.pop("optimizer")
        # The optimizer's own values of what multipliers apply to, given or by default.
        self._base: dict[str, Any] = dict.fromkeys(_MULTIPLIERS.values())
        self._names, self._added = list[str](), set[nn.Parameter]()
        if not isinstance(self.optimizer_cfg, Optimizer):
            component, _ = check_cfg(
                self.optimizer_cfg, OPTIMIZERS, {"params": ()}, where=f"{where}.optimizer"
            )
            known = inspect.signature(component).parameters
            for name in self._base:
                default = known[name].default if name in known else None
                value = self.optimizer_cfg.get(name)
                value = default if value is None else value
                self._base[name] = value if isinstance(value, (int, float, Tensor)) else None
            if self.paramwise_cfg:
                self._check_paramwise(known)
        elif self.paramwise_cfg:
            raise ConfigError(
                f"{where}.paramwise_cfg: a ready {type(self.optimizer_cfg).__name__} was given, "
                "which has its parameter groups; give the optimizer as a dict."
            )
        self.base_lr, self.base_wd = self._base["lr"], self._base["weight_decay"]

    def __call__(self, model: nn.Module) -> Any:
        """Build the optimizer over the parameters of ``model``, and its wrapper.

        Raises:
            ConfigError: If nothing in ``model`` is trainable, or a config does not fit.
        """
        optimizer = self.optimizer_cfg
        if not isinstance(optimizer, Optimizer):
            optimizer = build_from_cfg(
                optimizer,
                OPTIMIZERS,
                {"params": self._parameters(model)},
                where=f"{self._where}.optimizer",
            )
        return build_from_cfg(
            {**self.optim_wrapper_cfg, "optimizer": optimizer},
            OPTIM_WRAPPERS,
            {"type": "OptimWrapper"},
            where=self._where,
        )

    def add_params(
        self,
        params: list[dict[str, Any]],
        module: nn.Module,
        prefix: str = "",
        is_dcn_module: Any = None,
        **kwargs: Any,
    ) -> None:
        """Append a parameter group for each trainable parameter of ``module``.

        A subclass gets the whole model first.

        Args:
            params: The groups.
            module: The model, or a part of it, for which this is called again.
            prefix: Name of ``module``.
            is_dcn_module: No effect; MMEngine's.
            **kwargs: Of a subclass.
        """
        module = unwrap_model(module)
        for key, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            self._names.append(name := f"{prefix}.{key}" if prefix else key)
            if parameter not in self._added:
                self._added.add(parameter)
                own = self._settings_of(name, parameter, module)
                params.append({**own, "params": [parameter]})
        for key, child in module.named_children():
            path = f"{prefix}.{key}" if prefix else key
            self.add_params(params, child, prefix=path, is_dcn_module=is_dcn_module, **kwargs)

    def _settings_of(self, name: str, parameter: nn.Parameter, module: Any) -> dict[str, Any]:
        """Return the settings in which a parameter differs from the optimizer's own."""
        custom = self.paramwise_cfg.get("custom_keys", {})
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
                if holds and key in self.paramwise_cfg:
                    multiplier = "lr_mult" if key.endswith("lr_mult") else "decay_mult"
                    given.setdefault(multiplier, self.paramwise_cfg[key])
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
        if not self.paramwise_cfg:  # integers, as of quantized weights, are never trained
            return [
                one for one in model.parameters() if one.is_floating_point() or one.is_complex()
            ]
        self._names, self._added = [], set()
        params: list[dict[str, Any]] = []
        self.add_params(params, unwrap_model(model))
        if type(self).add_params is not DefaultOptimWrapperConstructor.add_params:
            return params
        names = self._names
        parts = {part for name in names for part in name.split(".")}
        for key in sorted(self.paramwise_cfg.get("custom_keys", ())):
            if not any(key in name for name in names) and mm_dist.is_main_process():
                warnings.warn(
                    f"{self._where}.paramwise_cfg.custom_keys: {key!r} is part of no parameter's "
                    f"name.{did_you_mean(key, parts)}",
                    stacklevel=2,
                )
        groups: list[dict[str, Any]] = []  # equal ones together
        for group in params:
            own = {key: value for key, value in group.items() if key != "params"}
            equal = (one for one in groups if {**one, "params": ()} == {**own, "params": ()})
            if (found := next(equal, None)) is None:
                groups.append(group)
            else:
                found["params"] += group["params"]
        return groups

    def _check_paramwise(self, known: Mapping[str, inspect.Parameter]) -> None:
        """Check the rules."""
        where = f"{self._where}.paramwise_cfg"
        if type(self) is DefaultOptimWrapperConstructor:
            check_section(self.paramwise_cfg, where, dict.fromkeys(_KEYS, Any))
        self._check_factors(self.paramwise_cfg, where)
        custom = need_mapping(
            self.paramwise_cfg.get("custom_keys", {}),
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
