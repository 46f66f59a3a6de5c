"""The model of a run: built, moved, compiled and wrapped, in this order."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mm_dist
from mm_runner.config import ConfigDict
from mm_runner.data import as_channels_last, map_tensors
from mm_runner.errors import ConfigError
from mm_runner.hooks import CompileReportHook
from mm_runner.model import Supervised, apply_activation_checkpointing, unwrap_model
from mm_runner.optim import named_wrappers
from mm_runner.registry import MODEL_WRAPPERS, MODELS, build_from_cfg, need_mapping

if TYPE_CHECKING:
    from collections.abc import Callable

    import mm_compile
    from mm_dist import DistInfo

    from ._runner import Runner

# Methods that a wrapper defines itself: compiled there, and after wrapping.
_STEPS = {"train_step", "val_step", "test_step"}


def with_preprocessor(model: Any, data_preprocessor: Any) -> Any:
    """Add the config of a data preprocessor to a model config without one."""
    if data_preprocessor is None or not isinstance(model, Mapping):
        return model
    merged = {"data_preprocessor": data_preprocessor, **model}
    return ConfigDict(merged) if isinstance(model, ConfigDict) else merged


def as_trainable(model: nn.Module, loss: Any, warn: Callable[[str], object]) -> nn.Module:
    """Return ``model``, or a module without steps of its own in a :class:`Supervised`.

    Args:
        model: Bare or wrapped.
        loss: As of ``Supervised``.
        warn: Logs a message.
    """
    steps = ("train_step", "val_step", "test_step")
    if is_wrapped(model) or any(callable(getattr(model, name, None)) for name in steps):
        if loss is not None:
            name = type(unwrap_model(model)).__name__
            warn(f"loss has no effect: {name} has steps of its own, which compute the loss.")
        return model
    return Supervised(model, loss)


def build_model(model: Any) -> nn.Module:
    """Build the model from its config; a module is returned as it is."""
    if isinstance(model, nn.Module):
        return model
    need_mapping(model, "model", "an nn.Module or a dict with 'type'")
    built = build_from_cfg(model, MODELS, where="model")
    if not isinstance(built, nn.Module):
        raise ConfigError(f"model.type: an nn.Module is needed, {model['type']!r} gave {built!r}.")
    return built


def is_wrapped(model: nn.Module) -> bool:
    """Return whether a model is in a wrapper: torch's, ours, or a registered one."""
    return mm_dist.is_model_wrapper(model) or unwrap_model(model) is not model


def wrap_model(
    model: nn.Module, wrapper_cfg: Any, cfg: Mapping[str, Any], dist_info: DistInfo
) -> nn.Module:
    """Move the model to its device, and wrap it if the run is distributed."""
    if is_wrapped(model):
        if wrapper_cfg is not None:
            raise ConfigError(
                f"model_wrapper_cfg: the model is wrapped already, in {type(model).__name__}; "
                "give the bare model, or no model_wrapper_cfg."
            )
        return model
    model = model.to(dist_info.device)
    if dist_info.backend is None:  # a process group may exist without any launcher
        return model
    wrapper_cfg = need_mapping(wrapper_cfg or {}, "model_wrapper_cfg")
    wrapper = wrapper_type(wrapper_cfg)
    defaults: dict[str, Any] = {}
    if inspect.isclass(wrapper) and issubclass(wrapper, DistributedDataParallel):
        if dist_info.device.type != "cpu":
            defaults["device_ids"] = [dist_info.device.index]
        if issubclass(wrapper, mm_dist.MMDistributedDataParallel):
            defaults |= {"broadcast_buffers": False, "find_unused_parameters": False}
        if "find_unused_parameters" in cfg:
            defaults["find_unused_parameters"] = bool(cfg["find_unused_parameters"])
        if torch.are_deterministic_algorithms_enabled() and dist_info.world_size > 2:
            # Else DDP rebuilds its buckets before the second step, and the ranks' values are added
            # in another order in the first step of a resumed run.
            defaults["find_unused_parameters"] = True
    return build_from_cfg(  # type: ignore[no-any-return]
        {**wrapper_cfg, "type": wrapper},
        MODEL_WRAPPERS,
        {"module": model, **defaults},
        where="model_wrapper_cfg",
    )


def wrapper_type(wrapper_cfg: Mapping[str, Any]) -> Any:
    """Return the wrapper class of a distributed run, by ``model_wrapper_cfg``."""
    kind = wrapper_cfg.get("type", "MMDistributedDataParallel")
    return MODEL_WRAPPERS.get(kind) if isinstance(kind, str) else kind


def use_channels_last(model: nn.Module) -> None:
    """Store 4-d parameters, buffers and preprocessed batches with channels last, in place."""
    inner: Any = unwrap_model(model)
    with torch.no_grad():
        for tensor in (*inner.parameters(), *inner.buffers()):
            tensor.data = as_channels_last(tensor.data)  # 5-d ones know another format
    preprocessor = getattr(inner, "data_preprocessor", None)
    if isinstance(preprocessor, nn.Module):
        preprocessor.register_forward_hook(
            lambda _module, _args, batch: map_tensors(batch, as_channels_last)
        )


def compile_and_wrap(
    run: Runner, model: nn.Module, wrap_model: Callable[[nn.Module], nn.Module]
) -> tuple[nn.Module, mm_compile.CompileHandle | None]:
    """Compile the model as ``cfg.compile`` says, and wrap it; return it and the compile handle.

    Nothing is compiled before the first call; without ``cfg.compile`` there is no handle.
    """
    bare, cfg, asked = unwrap_model(model), run.cfg, run.cfg.get("compile")
    if isinstance(asked, Mapping) and asked.get("cache") is True:  # shared by a project's runs
        asked = {**asked, "cache": str(run.work_dir.parent / "compile_cache")}
    if cfg.get("sync_bn") is not None:
        apply_activation_checkpointing(bare, None)  # drop that of an earlier run
        if run.distributed:
            mm_dist.convert_sync_batchnorm(model, cfg["sync_bn"])
    apply_activation_checkpointing(bare, cfg.get("activation_checkpointing"))
    target = asked.get("target") if isinstance(asked, Mapping) else None
    compiles_wrapped = not _STEPS.isdisjoint([target] if isinstance(target, str) else target or [])
    if not compiles_wrapped and not is_wrapped(model):
        model = model.to(run.device)
    if asked is None or asked is False:
        return wrap_model(model), None
    import mm_compile  # noqa: PLC0415 - many runs compile nothing

    if compiles_wrapped:
        wrapped = wrap_model(model)
        return wrapped, mm_compile.compile_model(wrapped, asked)
    # Compiled before it is sharded: parameters are then gathered and freed by hooks around the
    # compiled code, and regions are recognized by their classes and the shapes of the whole.
    handle = mm_compile.compile_model(bare, asked)
    return wrap_model(model), handle


def begin_compiling(run: Runner) -> None:
    """Compile the optimizers if configured, and announce the number of steps to come."""
    handle, asked = run.compile_handle, run.cfg.get("compile")
    if handle is None:
        return
    import mm_compile  # noqa: PLC0415 - many runs compile nothing

    if isinstance(asked, Mapping) and asked.get("optimizer"):
        for wrapper in named_wrappers(run.optim_wrapper).values():
            with suppress(mm_compile.AlreadyCompiledError):  # assigned, and trained with before
                handle.compile_optimizer(wrapper.optimizer)
    handle.expect_steps(max(run.max_iters - run.iter, 0))
    has_report = any(isinstance(hook, CompileReportHook) for hook in run.hooks)
    if handle.enabled and not has_report:
        run.register_hook(CompileReportHook())
