"""Several optimizer wrappers from one config, each over a part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mm_amp import OptimWrapper, OptimWrapperDict
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.model import unwrap_model

from ._optim_wrapper import build_optim_wrapper

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MultiOptimWrapperConstructor"]


class MultiOptimWrapperConstructor:
    """Builds an ``OptimWrapperDict`` whose names are those of the parts that are trained.

    Args:
        optim_wrapper_cfg: By name of a part (with dots for a part of a part): a wrapper's config,
            or a wrapper.
        paramwise_cfg: For each part that has none of its own; see
            :class:`DefaultOptimWrapperConstructor`.

    Raises:
        ConfigError: If there is no part.

    Example:
        >>> sgd = dict(optimizer=dict(type="SGD", lr=0.1))
        >>> constructor = MultiOptimWrapperConstructor(dict(generator=sgd, critic=sgd))
        >>> parts = nn.ModuleDict(dict(generator=nn.Linear(2, 2), critic=nn.Linear(2, 1)))
        >>> list(constructor(parts))
        ['generator', 'critic']
    """

    def __init__(self, optim_wrapper_cfg: Mapping[str, Any], paramwise_cfg: Any = None) -> None:
        if not isinstance(optim_wrapper_cfg, Mapping) or not optim_wrapper_cfg:
            raise ConfigError(
                f"optim_wrapper: configs by name of a part of the model are needed beside "
                f"constructor, got {optim_wrapper_cfg!r}."
            )
        self._cfg = {
            name: {"paramwise_cfg": paramwise_cfg, **cfg} if isinstance(cfg, Mapping) else cfg
            for name, cfg in optim_wrapper_cfg.items()
        }

    def __call__(self, model: nn.Module) -> OptimWrapperDict:
        """Build a wrapper over the trainable parameters of each part.

        Raises:
            ConfigError: If ``model`` has no part of a name, or a config does not fit.
        """
        wrappers = {
            name: cfg
            if isinstance(cfg, OptimWrapper)
            else build_optim_wrapper(_part(model, name), cfg, where=f"optim_wrapper.{name}")
            for name, cfg in self._cfg.items()
        }
        return OptimWrapperDict(**wrappers)


def _part(model: nn.Module, path: str) -> nn.Module:
    """Return the part that ``path`` names, whatever wraps the model or what is above the part."""
    part = unwrap_model(model)
    for name in path.split("."):
        children = dict(part.named_children())
        if name not in children:
            raise ConfigError(
                f"optim_wrapper.{path}: {type(part).__name__} has no part {name!r}; it has "
                f"{', '.join(children) or 'none'}.{did_you_mean(name, children)}"
            )
        part = unwrap_model(children[name])
    return part
