"""Rules by which parameters differ in learning rate, weight decay and other settings."""

from __future__ import annotations

import math
import re
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
# How alike a key must be to a known one to be offered in its place; and, where an optimizer may
# know more settings than are listed, to be taken for a slip.
_NEAR, _SLIP = 0.6, 0.8
# And to be a misspelled part of a parameter's name: sem_head and seg_head (0.875) are two.
_MISSPELLED = 0.9
_NUMBER = re.compile(r"\d+")


class ParamwiseRules:
    """What ``paramwise_cfg`` says.

    Args:
        cfg: MMEngine's keys; see :class:`DefaultOptimWrapperConstructor`.
        base_lr: Learning rate that factors apply to, ``None`` if there is none.
        base_decay: Weight decay that factors apply to, ``None`` if there is none.
        where: Path of ``cfg``, for messages.
        settings: What a group of the optimizer may set, as far as it is known.
        has_others: Whether the optimizer may know further settings.

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
        has_others: bool,
    ) -> None:
        self._where = where
        self._settings = list(dict.fromkeys((*_MULTIPLIERS, *settings)))
        self._has_others = has_others
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

    def tell_unused(self, names: list[str]) -> None:
        """Refuse custom keys that misspell a part of a name; warn of others that match nothing.

        Configurations of a family of models have keys for parts that some of its models lack.

        Raises:
            ConfigError: If a key is misspelled.
        """
        parts = {part for name in names for part in name.split(".")}
        parts.update(name.rpartition(".")[0] for name in names)
        letters = {_NUMBER.sub("", part) for part in parts}
        for key in sorted(self._unused):
            told = (
                f"{self._where}.custom_keys: {key!r} is part of no parameter's name."
                f"{did_you_mean(key, parts)}"
            )
            # A smaller model has fewer layers: another number is no slip.
            plain = _NUMBER.sub("", key)
            if plain not in letters and did_you_mean(plain, letters, cutoff=_MISSPELLED):
                raise ConfigError(f"{told} Correct the key, or leave it out.")
            if mm_dist.is_main_process():
                warnings.warn(told, stacklevel=2)

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
        """Check what a group is to have; what is unlike all settings may be for a hook to read."""
        if key not in self._settings:
            cutoff = _SLIP if self._has_others else _NEAR
            hint = did_you_mean(str(key), self._settings, cutoff=cutoff)
            is_rule = isinstance(value, Mapping) and not value.keys().isdisjoint(_MULTIPLIERS)
            if hint or is_rule:
                known = ", ".join(self._settings)
                raise ConfigError(f"{where}: unknown key; known are {known}.{hint}")
        elif isinstance(value, Mapping) and not self._has_others:
            raise ConfigError(f"{where}: a value is needed, got the dict {short_repr(value)}.")

    def _check_multiplier(self, given: Mapping[str, Any], key: str, where: str) -> None:
        if key not in given:
            return
        value = given[key]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            kind = "finite number" if is_number else "number"
            raise ConfigError(f"{where}: a {kind} is needed, got {value!r}.")
        setting = "lr" if key.endswith("lr_mult") else "weight_decay"
        if self._base[setting] is None:
            raise ConfigError(
                f"{where}: it multiplies {setting}, which the optimizer was not given; give it."
            )
