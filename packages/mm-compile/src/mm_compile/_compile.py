"""``compile_model``."""

import dataclasses
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from . import _torch_private as torch_private
from ._cache._code_cache import open_cache
from ._compiled_code import RegionKind, mode_of
from ._config import TRAINED, CompileConfig, check_against_torch, parse_config
from ._device_graphs import DeviceGraphs, records_graphs
from ._errors import AlreadyCompiledError, ConfigError, MMCompileError
from ._handle import CompileHandle
from ._method import function_of, instance_method
from ._model_call import ModelCall
from ._region import Region
from ._select import find_regions, has_forward, signature_of
from ._torch import shares_code
from ._verify import Verifier
from ._warm_up import WarmUp

_logger = logging.getLogger(__name__)


def compile_model(
    model: nn.Module,
    cfg: bool | str | Mapping[str, Any] | None = True,  # noqa: FBT001, FBT002 - a config value
    **keywords: Any,
) -> CompileHandle:
    """Compile ``model`` in place, as ``cfg`` says.

    The model stays the same object: its parameters, the keys of its ``state_dict``, its hooks and
    its training mode do not change. Copies of it run eagerly. The config is checked here; compiling
    happens at the model's first call. Call the model, not the handle.

    Args:
        model: A module, or one wrapped by torch's ``DistributedDataParallel``.
        cfg: True for the defaults; False or None for nothing; ``"auto"`` to compile if it pays; or
            the keyword arguments of this torch's ``torch.compile`` (``backend``, ``mode``,
            ``dynamic``, ``fullgraph``, ``options``, ``disable``, ...) plus those below. It is not
            changed.

            * ``target``: ``"forward"`` (the default) is what ``model(...)`` runs, in training and
              evaluation. ``"train_step"``, ``"val_step"``, ``"test_step"``, ``"loss"`` and
              ``"predict"`` are these methods of ``model``, ``train_step`` with its backward and
              optimizer step. A list of names compiles each.
            * ``regions``: ``"auto"`` compiles repeated blocks one by one, each kind once; a list of
              patterns (``["encoder.layers.*"]``) compiles the modules of these names.
            * ``on_error``: ``"raise"`` (the default), or ``"eager"`` to run a region that does not
              compile eagerly. A ``MemoryError`` and an ``OSError`` are always raised.
            * ``recompile_limit`` (4): how often a region may be compiled again in each mode.
            * ``on_recompile``: what happens beyond: ``"dynamic"`` (the default) compiles once more
              for any size, then runs eagerly; ``"eager"``; ``"raise"``.
            * ``cache``: a directory for inductor's compiled code, so that the next run starts warm.
              It is code that runs: one that other users can write is not used.
            * ``optimizer``: whether ``handle.compile_optimizer`` compiles the optimizer's step.
            * ``disable="auto"``: run the first training steps eagerly and time them, then compile
              if that is expected to save more than it costs in the steps that are left
              (``handle.expect_steps``); undo it if it does not. All ranks do as rank 0.
              ``cfg="auto"`` also sets ``regions="auto"`` and ``on_error="eager"``.
            * ``verify``: True or in how many training calls of each region to compare outputs and
              gradients with eager ones, or a dict of ``steps``, ``rtol`` and ``atol``. A region
              that deviates runs eagerly or raises ``NumericsError``, as ``on_error`` says.
        **keywords: Keys of ``cfg``, which win, as in ``compile_model(model, mode="max-autotune")``.

    Returns:
        A handle that undoes and reports.

    Raises:
        ConfigError: If a key, backend, mode, option, target or pattern is unknown, or a value has
            the wrong type.
        TorchVersionError: If torch is older than 2.0, or cannot compile on this Python.
        AlreadyCompiledError: If the model is compiled already.

    Example:
        >>> handle = compile_model(nn.Linear(3, 1), {"backend": "eager"})
        >>> handle.enabled
        True
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"compile_model got {type(model).__name__}; it compiles a torch.nn.Module."
        )
    config = parse_config(cfg, keywords)
    if not config.enabled:
        return CompileHandle(config, [])
    check_against_torch(config)
    config = dataclasses.replace(config, code_cache=open_cache(config.cache, config.keywords))
    regions = _install(model, config)
    verifier = None
    if config.verify is not None:
        verifier = Verifier(config)
        for region in regions:
            region.check = partial(verifier.check, region)
    inner = _unwrapped(model)
    # Of several methods, one that runs in training.
    root = next((each for each in regions if each.attribute in TRAINED), regions[0])
    root.model_call = model_call = ModelCall(inner, is_installed=bool(root.name))
    on_undo = [model_call.remove]
    if records_graphs(config.keywords):
        graphs = DeviceGraphs(inner.parameters())
        model_call.on_begin.append(graphs.begin)
        model_call.on_end.append(graphs.copy_outputs)
        on_undo.append(graphs.remove)
    warm_up = WarmUp(inner, regions, config, model_call)
    return CompileHandle(config, regions, warm_up, verifier, on_undo)


def _install(model: nn.Module, config: CompileConfig) -> list[Region]:
    """Compile the parts of ``model`` that ``config`` names, in place."""
    try:
        regions = [
            region
            for attribute in config.target
            for region in _make_regions(model, attribute, config)
        ]
    except MMCompileError:
        raise
    except (AssertionError, RuntimeError, TypeError) as error:
        # torch.compile compiles nothing yet: it refuses one of its arguments.
        raise ConfigError(f"torch.compile refused {config.keywords}: {error}") from error
    if shares_code():
        torch_private.guard_hooks()
    for region in regions:
        region.install()
    return regions


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside a data-parallel wrapper."""
    while isinstance(model, DistributedDataParallel):
        model = model.module
    if isinstance(model, DataParallel):
        raise ConfigError(
            "compile was asked for a model in DataParallel, which copies the model for every call. "
            "Use DistributedDataParallel, one process for each device."
        )
    return model


def _make_regions(model: nn.Module, attribute: str, config: CompileConfig) -> list[Region]:
    # Compiling inside a wrapper lets its val_step and predict run compiled code too; dynamo still
    # ends graphs at the gradient buckets.
    inner = _unwrapped(model) if attribute == "forward" else model
    _refuse_compiled(inner)
    modules = [] if config.regions is None else find_regions(inner, config.regions)
    if config.regions is not None and not modules:
        _logger.info(
            "compile: regions='auto' found too few equal blocks in %s; it is compiled whole.",
            type(inner).__name__,
        )
    modules = modules or [("", inner)]
    for _, module in modules:
        _refuse(module, attribute)
    kinds: dict[object, RegionKind] = {}
    regions = []
    for name, module in modules:
        is_alone = not shares_code() or instance_method(module, attribute) is not None
        key = id(module) if is_alone else signature_of(module)
        if key not in kinds:
            kinds[key] = RegionKind(function_of(module, attribute), config)
            # Compiles nothing, but torch checks its arguments now.
            kinds[key].code(mode_of(module))
        regions.append(Region(module, attribute, name, kinds[key]))
    return regions


def _refuse_compiled(module: nn.Module) -> None:
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise ConfigError(
            f"compile was asked for {kind}, which torch.jit has compiled. Give the module that it "
            "was made of."
        )
    if torch_private.is_made_by_torch_compile(module):
        raise AlreadyCompiledError(
            f"compile was asked for {kind}, which torch.compile has made. Give the module that it "
            "was made of, or drop one of the two."
        )


def _refuse(module: nn.Module, attribute: str) -> None:
    _refuse_compiled(module)
    asked = f"compile of {attribute!r} was asked for, but {type(module).__name__}"
    is_forward = attribute == "forward"
    if not callable(getattr(type(module), attribute, None)):
        raise ConfigError(
            f"{asked} has no method of that name. Use target='forward', or give the model the "
            "method."
        )
    if is_forward and not has_forward(module):
        raise ConfigError(
            f"{asked} has no forward to compile. Give the model that holds it, or name by regions "
            "what it holds, such as regions=['*']."
        )
    if is_forward and torch_private.is_compiled_by_module(module):
        raise AlreadyCompiledError(
            f"{asked} is compiled already, by its own compile(), which is torch's. Drop that call, "
            "or leave this out."
        )
    present = vars(module).get(attribute)
    if isinstance(present, Region) and present.is_active:
        raise AlreadyCompiledError(
            f"{asked} is compiled already. Call undo() on the handle of the first compile_model "
            "before compiling again."
        )
