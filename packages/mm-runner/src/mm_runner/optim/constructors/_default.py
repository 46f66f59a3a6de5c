"""Build an optimizer with parameter groups, and its wrapper."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

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
            * ``bypass_duplicate``: taken as in MMEngine; a shared parameter has one group anyway.
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
        optimizer = f"{where}.optimizer"
        component, _ = check_cfg(self._optimizer, OPTIMIZERS, {"params": ()}, where=optimizer)
        self._known = inspect.signature(component).parameters
        self._base_lr, self._base_decay = self._base("lr"), self._base("weight_decay")
        self._rules()  # raises if they do not fit

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
        named = [one for one in walk_parameters(model) if one.parameter.requires_grad]
        if not named:
            raise ConfigError(
                f"{self._where}: {type(model).__name__} has no parameter with requires_grad=True; "
                "unfreeze at least one, or do not train."
            )
        if not self._is_paramwise:  # integers, as of quantised weights, are never trained
            return [
                one for one in model.parameters() if one.is_floating_point() or one.is_complex()
            ]
        self.prepare(model)
        rules = self._rules()
        options: dict[nn.Parameter, dict[str, Any]] = {}
        for one in named:  # also names that a shared parameter has besides: their keys are used
            options.setdefault(one.parameter, self.options(one, rules))
        rules.warn_unused([one.name for one in named])
        return _merged(options)

    def _rules(self) -> ParamwiseRules:
        return ParamwiseRules(
            self._paramwise,
            base_lr=self._base_lr,
            base_decay=self._base_decay,
            where=f"{self._where}.paramwise_cfg",
            settings=self._settings(),
        )

    @property
    def _is_paramwise(self) -> bool:
        return bool(self._paramwise)

    def _base(self, setting: str) -> Any:
        """Return the optimizer's own value of a setting, given or by default."""
        value = self._optimizer.get(setting)
        if value is None and setting in self._known:
            value = self._known[setting].default
        return value if isinstance(value, (int, float, Tensor)) else None

    def _settings(self) -> list[str]:
        """Return what the optimizer takes besides parameters, all of which a group may set."""
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return [
            name for name, one in self._known.items() if one.kind in by_name and name != "params"
        ]


def _merged(parameters: Mapping[nn.Parameter, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parameter groups, one for all parameters with equal settings."""
    groups: list[tuple[dict[str, Any], list[Any]]] = []
    for parameter, options in parameters.items():
        for known, members in groups:
            if known == options:
                members.append(parameter)
                break
        else:
            groups.append((options, [parameter]))
    return [{**options, "params": members} for options, members in groups]
