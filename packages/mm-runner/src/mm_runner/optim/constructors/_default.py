"""An optimizer whose parameters differ in their settings, and its wrapper."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.registry import OPTIM_WRAPPERS, OPTIMIZERS, build_from_cfg, check_cfg

from ._paramwise import ParamwiseRules
from ._walk import NamedParameter, walk_parameters

if TYPE_CHECKING:
    from torch import nn

__all__ = ["DefaultOptimWrapperConstructor"]


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
            * ``lr_mult``, ``decay_mult``: for whatever no other key speaks of;
            * ``bias_lr_mult``: for biases, but for those of norms and of deformable convolutions'
              offsets;
            * ``norm_decay_mult``, ``bias_decay_mult``, ``dwconv_decay_mult``, ``flat_decay_mult``:
              for norms, biases, depth-wise convolutions, and parameters of one dimension; the
              first that applies counts;
            * ``dcn_offset_lr_mult``: for the offsets of deformable convolutions;
            * ``bypass_duplicate``: no warning of a shared parameter whose names differ in settings.
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
        if not isinstance(optim_wrapper_cfg, Mapping):
            raise ConfigError(f"{where}: a dict is needed, got {optim_wrapper_cfg!r}.")
        if "optimizer" not in optim_wrapper_cfg:
            given = ", ".join(map(repr, optim_wrapper_cfg)) or "none"
            raise ConfigError(
                f"{where}.optimizer: this key is missing; given: {given}. It is a dict such as "
                "dict(type='SGD', lr=0.01)."
            )
        if paramwise_cfg is not None and not isinstance(paramwise_cfg, Mapping):
            raise ConfigError(f"{where}.paramwise_cfg: a dict is needed, got {paramwise_cfg!r}.")
        self._cfg = optim_wrapper_cfg
        self._paramwise = dict(paramwise_cfg or {})
        self._where = where
        self._optimizer = optim_wrapper_cfg["optimizer"]
        if isinstance(self._optimizer, Optimizer):
            if self._paramwise:
                raise ConfigError(
                    f"{where}.paramwise_cfg: a ready {type(self._optimizer).__name__} was given, "
                    "which has its parameter groups; give the optimizer as a dict."
                )
            return
        check_cfg(self._optimizer, OPTIMIZERS, {"params": ()}, where=f"{where}.optimizer")
        self._base_lr, self._base_decay = self._base("lr"), self._base("weight_decay")
        self._rules()  # what is wrong with them is told now

    def __call__(self, model: nn.Module) -> Any:
        """Build the wrapper.

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

    def prepare(self, model: nn.Module) -> None:
        """Look at the model before :meth:`options` is asked; a subclass may override this."""
        del model

    def options(self, one: NamedParameter, rules: ParamwiseRules) -> dict[str, Any]:
        """Return the settings of a parameter's group; a subclass may override this.

        Args:
            one: The parameter under one of its names.
            rules: What ``paramwise_cfg`` says.
        """
        return rules.options(one)

    def _parameters(self, model: nn.Module) -> list[Any]:
        """Return the parameters; the trainable ones, in groups, if ``paramwise_cfg`` is given."""
        everything = list(walk_parameters(model))
        named = [one for one in everything if one.parameter.requires_grad]
        if not named:
            raise ConfigError(
                f"{self._where}: {type(model).__name__} has no parameter with requires_grad=True; "
                "unfreeze at least one, or do not train."
            )
        if not self._is_paramwise:  # integers, as of quantised weights, are never trained
            kept = (one.parameter for one in everything if _may_be_trained(one.parameter))
            return list(dict.fromkeys(kept))
        first = {id(one.parameter): one for one in reversed(named)}
        self.prepare(model)
        options = self._options_by_name(named)
        for one in named:
            own, used = options[one.name], options[first[id(one.parameter)].name]
            if own != used and not self._paramwise.get("bypass_duplicate", False):
                self._tell_shared(one, first[id(one.parameter)])
        unique = [one for one in named if first[id(one.parameter)] is one]
        return _merged([(one.parameter, options[one.name]) for one in unique])

    def _options_by_name(self, named: list[NamedParameter]) -> dict[str, dict[str, Any]]:
        rules = self._rules()
        options = {one.name: self.options(one, rules) for one in named}
        rules.tell_unused(list(options))
        return options

    def _rules(self) -> ParamwiseRules:
        return ParamwiseRules(
            self._paramwise,
            base_lr=self._base_lr,
            base_decay=self._base_decay,
            where=f"{self._where}.paramwise_cfg",
            settings=self._settings(),
            has_others=not self._is_torchs(),
        )

    @property
    def _is_paramwise(self) -> bool:
        return bool(self._paramwise)

    def _tell_shared(self, one: NamedParameter, first: NamedParameter) -> None:
        if mm_dist.is_main_process():
            warnings.warn(
                f"{self._where}.paramwise_cfg: {first.name} and {one.name} are one parameter, and "
                f"differ in their settings; those of {first.name} are used. Say nothing of it with "
                "bypass_duplicate=True.",
                stacklevel=2,
            )

    def _base(self, setting: str) -> Any:
        """Return the optimizer's own value of a setting, given or by default."""
        value = self._optimizer.get(setting)
        if value is None:
            parameter = inspect.signature(self._component()).parameters.get(setting)
            value = parameter.default if parameter is not None else None
        return value if isinstance(value, (int, float, Tensor)) else None

    def _component(self) -> Any:
        component, _ = check_cfg(
            self._optimizer, OPTIMIZERS, {"params": ()}, where=f"{self._where}.optimizer"
        )
        return component

    def _is_torchs(self) -> bool:
        """Return whether the optimizer reads nothing from its groups but its arguments.

        Others than torch's may.
        """
        return str(self._component().__module__).startswith("torch.")

    def _settings(self) -> list[str]:
        """Return what the optimizer takes besides parameters, all of which a group may set."""
        parameters = inspect.signature(self._component()).parameters.values()
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return [one.name for one in parameters if one.kind in by_name and one.name != "params"]


def _may_be_trained(parameter: Tensor) -> bool:
    return parameter.is_floating_point() or parameter.is_complex()


def _merged(parameters: list[tuple[Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return parameter groups, one for all parameters with equal settings."""
    groups: list[tuple[dict[str, Any], list[Any]]] = []
    for parameter, options in parameters:
        for known, members in groups:
            if known == options:
                members.append(parameter)
                break
        else:
            groups.append((options, [parameter]))
    return [{**options, "params": members} for options, members in groups]
