"""Build optimizers and their wrappers from configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mm_amp import OptimWrapper, OptimWrapperDict
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.model import unwrap_model
from mm_runner.registry import (
    OPTIM_WRAPPER_CONSTRUCTORS,
    build_from_cfg,
    check_cfg,
    derives_from_library,
    need_mapping,
)

from ._constructors import DefaultOptimWrapperConstructor

if TYPE_CHECKING:
    from torch import nn


def build_optim_wrapper(model: nn.Module, cfg: Any, *, where: str = "optim_wrapper") -> Any:
    """Build an optimizer over the trainable parameters of ``model``, and its wrapper.

    Args:
        model: The model whose parameters are trained, wrapped or not.
        cfg: A ready wrapper (has ``update_params``), or a dict: ``optimizer`` (a config or a torch
            optimizer), ``type`` (``"OptimWrapper"`` by default), the wrapper's arguments, and
            ``paramwise_cfg`` (see :class:`DefaultOptimWrapperConstructor`). For several optimizers
            a dict of ready wrappers by name; or ``constructor`` and what that takes, such as
            ``dict(constructor="MultiOptimWrapperConstructor", generator=..., critic=...)``.
        where: Path of ``cfg`` in the configuration, for messages.

    Returns:
        The wrapper; of several, an ``OptimWrapperDict``.

    Raises:
        ConfigError: If a key is missing or unknown, or nothing in the model is trainable.
        ComponentNotFoundError: If a ``type`` or ``constructor`` names nothing.
    """
    if hasattr(cfg, "update_params"):
        return cfg
    need_mapping(cfg, where, "an optim wrapper or a dict")
    if cfg and all(hasattr(value, "update_params") for value in cfg.values()):
        return OptimWrapperDict(**cfg)
    arguments = dict(cfg)
    constructor = arguments.pop("constructor", None) or DefaultOptimWrapperConstructor
    component, settings = check_cfg(
        {
            "type": constructor,
            "paramwise_cfg": arguments.pop("paramwise_cfg", None),
            "optim_wrapper_cfg": arguments,
        },
        OPTIM_WRAPPER_CONSTRUCTORS,
        where=where,
    )
    # The initializer of a subclass takes MMEngine's arguments.
    if getattr(component, "__init__", None) is DefaultOptimWrapperConstructor.__init__:
        settings["where"] = where
    settings["type"] = component
    if derives_from_library(component):
        # Derived from MMEngine's: it makes the parameter groups, and the wrapper is ours.
        own = {"type": "OptimWrapper", "optimizer": arguments.get("optimizer")}
        theirs = build_from_cfg(
            {**settings, "optim_wrapper_cfg": own}, OPTIM_WRAPPER_CONSTRUCTORS, where=where
        )
        arguments["optimizer"] = theirs(model).optimizer
        return DefaultOptimWrapperConstructor(arguments, where=where)(model)
    return build_from_cfg(settings, OPTIM_WRAPPER_CONSTRUCTORS, where=where)(model)


def scale_lr(optim_wrapper: Any, factor: float) -> None:
    """Multiply every learning rate of one wrapper by ``factor``, in place."""
    optimizer = getattr(optim_wrapper, "optimizer", None)
    for settings in (*optim_wrapper.param_groups, getattr(optimizer, "defaults", {})):
        if settings.get("lr") is not None:
            settings["lr"] = settings["lr"] * factor  # no *=: it may be a tensor that groups share


def named_wrappers(optim_wrapper: Any) -> dict[str, Any]:
    """Return the wrappers by name; one that is not in an ``OptimWrapperDict`` has the name ``""``.

    Args:
        optim_wrapper: An optimizer wrapper, or an ``OptimWrapperDict``.
    """
    is_dict = isinstance(optim_wrapper, OptimWrapperDict)
    return dict(optim_wrapper.items()) if is_dict else {"": optim_wrapper}


def holds_gradients(optim_wrapper: Any) -> bool:
    """Return whether gradients are accumulated that no optimizer step has used yet."""
    wrappers = named_wrappers(optim_wrapper).values()
    return any(hasattr(one, "should_update") and not one.should_update() for one in wrappers)


class MultiOptimWrapperConstructor:
    """Builds an ``OptimWrapperDict`` whose names are those of the parts that are trained.

    Args:
        optim_wrapper_cfg: By name of a part (with dots for a part of a part): a wrapper's config,
            or a wrapper.
        paramwise_cfg: For each part that has none of its own; see
            :class:`DefaultOptimWrapperConstructor`.

    Raises:
        ConfigError: If there is no part.
    """

    def __init__(self, optim_wrapper_cfg: Mapping[str, Any], paramwise_cfg: Any = None) -> None:
        if not isinstance(optim_wrapper_cfg, Mapping) or not optim_wrapper_cfg:
            raise ConfigError(
                f"optim_wrapper: configs by name of a part of the model are needed beside "
                f"constructor, got {optim_wrapper_cfg!r}."
            )
        self._cfg, self._paramwise = optim_wrapper_cfg, {"paramwise_cfg": paramwise_cfg}

    def __call__(self, model: nn.Module) -> OptimWrapperDict:
        """Build a wrapper over the trainable parameters of each part.

        Raises:
            ConfigError: If ``model`` has no part of a name, or a config does not fit.
        """
        wrappers = {}
        for path, cfg in self._cfg.items():
            where, part = f"optim_wrapper.{path}", unwrap_model(model)
            for name in [] if isinstance(cfg, OptimWrapper) else path.split("."):
                children = dict(part.named_children())
                if name not in children:
                    raise ConfigError(
                        f"{where}: {type(part).__name__} has no part {name!r}; it has "
                        f"{', '.join(children) or 'none'}.{did_you_mean(name, children)}"
                    )
                part = unwrap_model(children[name])
            own = {**self._paramwise, **cfg} if isinstance(cfg, Mapping) else cfg
            wrappers[path] = build_optim_wrapper(part, own, where=where)
        return OptimWrapperDict(**wrappers)
