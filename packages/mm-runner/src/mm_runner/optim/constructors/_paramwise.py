"""Rules for learning rates, weight decay and other settings of single parameters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mm_dist
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import short_repr

if TYPE_CHECKING:
    from collections.abc import Collection

    from ._walk import NamedParameter

__all__ = ["ParamwiseRules"]

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
_MULTIPLIERS = ("lr_mult", "decay_mult")


class ParamwiseRules:
    """Rules of a ``paramwise_cfg``.

    Args:
        cfg: MMEngine's keys; see :class:`DefaultOptimWrapperConstructor`.
        base_lr: Learning rate that factors apply to, ``None`` if there is none.
        base_decay: Weight decay that factors apply to, ``None`` if there is none.
        where: Path of ``cfg``, for messages.
        settings: Arguments of the optimizer, which a group may set.

    Raises:
        ConfigError: If a key is unknown or has no use, or a value is no number.
    """

    def __init__(
        self,
        cfg: Mapping[str, Any],
        *,
        base_lr: Any,
        base_decay: Any,
        where: str,
        settings: Collection[str],
    ) -> None:
        self._where = where
        self._settings = list(dict.fromkeys((*_MULTIPLIERS, *settings)))
        self._base = {"lr": base_lr, "weight_decay": base_decay}
        self._cfg = {name: value for name, value in cfg.items() if value is not None}
        self._custom = self._checked_custom_keys()
        self._unused = set(self._custom)
        self._check()
        # The longest key that is part of a name wins, then the alphabet.
        self._keys = sorted(sorted(self._custom), key=len, reverse=True)

    def options(self, one: NamedParameter) -> dict[str, Any]:
        """Return the settings in which a parameter differs from the optimizer's own."""
        found = [key for key in self._keys if key in one.name]
        if found:
            self._unused.difference_update(found)
            return self._scaled(self._custom[found[0]])
        multipliers = {
            "lr_mult": self._lr_mult(one),
            "decay_mult": self._decay_mult(one),
        }
        return self._scaled({name: by for name, by in multipliers.items() if by is not None})

    def warn_unused(self, names: list[str]) -> None:
        """Warn of custom keys that are part of no parameter's name."""
        parts = {part for name in names for part in name.split(".")}
        for key in sorted(self._unused) if mm_dist.is_main_process() else ():
            warnings.warn(
                f"{self._where}.custom_keys: {key!r} is part of no parameter's name."
                f"{did_you_mean(key, parts)}",
                stacklevel=2,
            )

    def _lr_mult(self, one: NamedParameter) -> float | None:
        if one.is_offset and "dcn_offset_lr_mult" in self._cfg:
            return float(self._cfg["dcn_offset_lr_mult"])
        if one.is_bias and not (one.is_norm or one.in_deformable) and "bias_lr_mult" in self._cfg:
            return float(self._cfg["bias_lr_mult"])
        return self._cfg.get("lr_mult")

    def _decay_mult(self, one: NamedParameter) -> float | None:
        """Return the first factor that is given and applies."""
        applies = {
            "norm_decay_mult": one.is_norm,
            "bias_decay_mult": one.is_bias and not one.in_deformable,
            "dwconv_decay_mult": one.is_depthwise,
            "flat_decay_mult": one.is_flat and not one.in_deformable,
            "decay_mult": True,
        }
        for name, does_apply in applies.items():
            if does_apply and name in self._cfg:
                return float(self._cfg[name])
        return None

    def _scaled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        options = {key: value for key, value in given.items() if key not in _MULTIPLIERS}
        for name, setting in zip(_MULTIPLIERS, self._base, strict=True):
            if name in given:
                base = self._base[setting]
                assert base is not None, "checked at construction"
                options[setting] = base * given[name]
        return options

    def _checked_custom_keys(self) -> dict[str, Any]:
        given = self._cfg.get("custom_keys", {})
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"{self._where}.custom_keys: a dict of dicts by a part of a parameter's name is "
                f"needed, such as {{'backbone': dict(lr_mult=0.1)}}, got {short_repr(given)}."
            )
        return dict(given)

    def _check(self) -> None:
        for key in self._cfg:
            if key not in _KEYS:
                raise ConfigError(
                    f"{self._where}.{key}: unknown key; known are {', '.join(_KEYS)}."
                    f"{did_you_mean(str(key), _KEYS)}"
                )
        for key in _NUMBERS:
            self._check_multiplier(self._cfg, key, f"{self._where}.{key}")
        for name, settings in self._custom.items():
            where = f"{self._where}.custom_keys.{name}"
            if not isinstance(settings, Mapping):
                raise ConfigError(f"{where}: a dict such as dict(lr_mult=0.1), got {settings!r}.")
            for key, value in settings.items():
                self._check_setting(key, value, f"{where}.{key}")
                if key in _MULTIPLIERS:
                    self._check_multiplier(settings, key, f"{where}.{key}")

    def _check_setting(self, key: Any, value: Any, where: str) -> None:
        """Refuse a slip; a setting that the optimizer does not list may be for a hook to read."""
        hint = did_you_mean(str(key), self._settings)
        is_rule = isinstance(value, Mapping) and not value.keys().isdisjoint(_MULTIPLIERS)
        if key not in self._settings and (hint or is_rule):
            known = ", ".join(self._settings)
            raise ConfigError(f"{where}: unknown key; known are {known}.{hint}")

    def _check_multiplier(self, given: Mapping[str, Any], key: str, where: str) -> None:
        if key not in given:
            return
        value = given[key]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ConfigError(f"{where}: a number is needed, got {value!r}.")
        setting = "lr" if key.endswith("lr_mult") else "weight_decay"
        if self._base[setting] is None:
            raise ConfigError(
                f"{where}: it multiplies {setting}, which the optimizer was not given; give it."
            )
