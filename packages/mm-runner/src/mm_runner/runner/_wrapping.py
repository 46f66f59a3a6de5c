"""The model of a run: built, moved, wrapped."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mm_dist
from mm_runner.config import ConfigDict
from mm_runner.errors import ConfigError
from mm_runner.model import uncalled_step, unwrap_model
from mm_runner.registry import MODEL_WRAPPERS, MODELS, build_from_cfg

if TYPE_CHECKING:
    import logging

    from mm_dist import DistInfo

__all__ = [
    "build_model",
    "is_wrapped",
    "synchronize_batch_norm",
    "warn_of_uncalled_step",
    "with_preprocessor",
    "wrap_model",
    "wrapper_type",
]

_DEFAULT_WRAPPER = "MMDistributedDataParallel"


def with_preprocessor(model: Any, data_preprocessor: Any) -> Any:
    """Return the config of a model with that of a data preprocessor, unless it has its own."""
    if data_preprocessor is None or not isinstance(model, Mapping):
        return model
    merged = {"data_preprocessor": data_preprocessor, **model}
    return ConfigDict(merged) if isinstance(model, ConfigDict) else merged


def build_model(model: Any) -> nn.Module:
    """Build the model.

    Args:
        model: A module, or the config of one.

    Raises:
        ConfigError: If ``model`` is neither.
    """
    if isinstance(model, nn.Module):
        return model
    if not isinstance(model, Mapping):
        raise ConfigError(f"model: an nn.Module or a dict with 'type' is needed, got {model!r}.")
    built = build_from_cfg(model, MODELS, where="model")
    if not isinstance(built, nn.Module):
        raise ConfigError(f"model.type: an nn.Module is needed, {model['type']!r} gave {built!r}.")
    return built


def is_wrapped(model: nn.Module) -> bool:
    """Tell whether a model is in a wrapper: torch's, one of ours, or a registered one."""
    return mm_dist.is_model_wrapper(model) or unwrap_model(model) is not model


def synchronize_batch_norm(model: nn.Module, cfg: Mapping[str, Any], dist_info: DistInfo) -> None:
    """Let batch normalisation use the batches of all processes, if ``cfg.sync_bn`` says so.

    Args:
        model: Changed in place, before it is compiled.
        cfg: The full configuration.
        dist_info: The place of this process; without a process group nothing is done.
    """
    implementation = cfg.get("sync_bn")
    if implementation is not None and dist_info.backend is not None:
        mm_dist.convert_sync_batchnorm(model, implementation)


def wrap_model(
    model: nn.Module, wrapper_cfg: Any, cfg: Mapping[str, Any], dist_info: DistInfo
) -> nn.Module:
    """Move the model to its device, and wrap it if the run is distributed.

    Args:
        model: On any device.
        wrapper_cfg: A wrapper's config, or ``None``.
        cfg: The full configuration: ``find_unused_parameters`` counts.
        dist_info: The place of this process.

    Raises:
        ConfigError: If the model is wrapped already and ``model_wrapper_cfg`` asks for more.
    """
    if is_wrapped(model):
        if wrapper_cfg is not None:
            raise ConfigError(
                f"model_wrapper_cfg: the model is wrapped already, in {type(model).__name__}; "
                "give the bare model, or no model_wrapper_cfg."
            )
        return model
    model = model.to(dist_info.device)
    if dist_info.backend is None:  # no process group; one may exist without any launcher
        return model
    if wrapper_cfg is None:
        wrapper_cfg = {}
    if not isinstance(wrapper_cfg, Mapping):
        raise ConfigError(f"model_wrapper_cfg: a dict is needed, got {wrapper_cfg!r}.")
    wrapper = wrapper_type(wrapper_cfg)
    defaults = _default_arguments(wrapper, cfg, dist_info)
    return build_from_cfg(  # type: ignore[no-any-return]
        {**wrapper_cfg, "type": wrapper},
        MODEL_WRAPPERS,
        {"module": model, **defaults},
        where="model_wrapper_cfg",
    )


def wrapper_type(wrapper_cfg: Mapping[str, Any]) -> Any:
    """Return what a distributed run puts a model into, as ``model_wrapper_cfg`` says."""
    kind = wrapper_cfg.get("type", _DEFAULT_WRAPPER)
    return MODEL_WRAPPERS.get(kind) if isinstance(kind, str) else kind


def warn_of_uncalled_step(model: nn.Module, logger: logging.Logger) -> None:
    """Warn if the wrapper of a model leaves out the ``train_step`` of the model's own."""
    told = uncalled_step(unwrap_model(model), type(model))
    if told is not None:
        logger.warning(told)


def _default_arguments(wrapper: Any, cfg: Mapping[str, Any], dist_info: DistInfo) -> dict[str, Any]:
    """Return what a wrapper gets unless ``model_wrapper_cfg`` says otherwise."""
    if not (inspect.isclass(wrapper) and issubclass(wrapper, DistributedDataParallel)):
        return {}
    defaults: dict[str, Any] = {}
    if dist_info.device.type != "cpu":
        defaults["device_ids"] = [dist_info.device.index]
    if issubclass(wrapper, mm_dist.MMDistributedDataParallel):
        defaults["broadcast_buffers"] = False
        defaults["find_unused_parameters"] = bool(cfg.get("find_unused_parameters", False))
    elif "find_unused_parameters" in cfg:
        defaults["find_unused_parameters"] = bool(cfg["find_unused_parameters"])
    return defaults
