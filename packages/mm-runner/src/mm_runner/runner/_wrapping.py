"""The model of a run: built, moved, wrapped."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.registry import MODEL_WRAPPERS, MODELS, build_from_cfg

if TYPE_CHECKING:
    from mm_dist import DistInfo

__all__ = ["build_model", "synchronize_batch_norm", "wrap_model"]

_DEFAULT_WRAPPER = "MMDistributedDataParallel"


def build_model(model: Any, data_preprocessor: Any) -> nn.Module:
    """Build the model.

    Args:
        model: A module, or the config of one.
        data_preprocessor: Config that a model config without its own gets.

    Raises:
        ConfigError: If ``model`` is neither.
    """
    if isinstance(model, nn.Module):
        return model
    if not isinstance(model, Mapping):
        raise ConfigError(f"model: an nn.Module or a dict with 'type' is needed, got {model!r}.")
    defaults = {} if data_preprocessor is None else {"data_preprocessor": data_preprocessor}
    built = build_from_cfg(model, MODELS, defaults, where="model")
    if not isinstance(built, nn.Module):
        raise ConfigError(f"model.type: an nn.Module is needed, {model['type']!r} gave {built!r}.")
    return built


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


def wrap_model(model: nn.Module, cfg: Mapping[str, Any], dist_info: DistInfo) -> nn.Module:
    """Move the model to its device, and wrap it if the run is distributed.

    Args:
        model: On any device.
        cfg: The full configuration: ``model_wrapper_cfg`` and ``find_unused_parameters`` count.
        dist_info: The place of this process.

    Raises:
        ConfigError: If the model is wrapped already and ``model_wrapper_cfg`` asks for more.
    """
    wrapper_cfg = cfg.get("model_wrapper_cfg")
    if mm_dist.is_model_wrapper(model):
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
    kind = wrapper_cfg.get("type", _DEFAULT_WRAPPER)
    wrapper = MODEL_WRAPPERS.get(kind) if isinstance(kind, str) else kind
    defaults = _default_arguments(wrapper, cfg, dist_info)
    return build_from_cfg(  # type: ignore[no-any-return]
        {**wrapper_cfg, "type": wrapper},
        MODEL_WRAPPERS,
        {"module": model, **defaults},
        where="model_wrapper_cfg",
    )


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
