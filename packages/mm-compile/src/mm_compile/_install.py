"""Installing compiled regions on a model."""

import logging
from collections.abc import Sequence
from types import FunctionType

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from . import _torch_private as torch_private
from ._compiled_code import RegionKind, mode_of
from ._config import CompileConfig
from ._errors import AlreadyCompiledError, ConfigError
from ._method import function_of, instance_method
from ._region import Region
from ._select import NamedModule, find_regions, has_forward, signature_of
from ._torch import shares_code

_logger = logging.getLogger(__name__)


def install_regions(model: nn.Module, config: CompileConfig) -> list[Region]:
    """Compile the parts of ``model`` that ``config`` names, in place.

    Returns:
        The installed regions.

    Raises:
        ConfigError: If the model has no such method or modules.
        AlreadyCompiledError: If one of them is compiled.
    """
    regions = [
        region for attribute in config.target for region in _make_regions(model, attribute, config)
    ]
    for index, region in enumerate(regions):
        region.index = index
    for region in regions:
        region.install()
    return regions


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside a data-parallel wrapper.

    Raises:
        ConfigError: If the wrapper is ``DataParallel``.
    """
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
    inner = unwrapped(model) if attribute == "forward" else model
    _refuse_kind(inner)
    modules = [("", inner)]
    if config.regions is not None:
        modules = find_regions(inner, config.regions)
        if not modules:
            _logger.info(
                "compile: regions='auto' found too few equal blocks in %s; it is compiled whole.",
                type(inner).__name__,
            )
            modules = [("", inner)]
    for _, module in modules:
        _refuse(module, attribute)
    return _group(modules, attribute, config)


def _refuse_kind(module: nn.Module) -> None:
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
    _refuse_kind(module)
    kind = type(module).__name__
    if not callable(getattr(type(module), attribute, None)):
        raise ConfigError(
            f"compile.target is {attribute!r}, but {kind} has no method of that name. "
            "Use target='forward', or give the model the method."
        )
    if attribute == "forward" and not has_forward(module):
        raise ConfigError(
            f"compile was asked for {kind}, which has no forward to compile. Give the model that "
            "holds it, or name by regions what it holds, such as regions=['*']."
        )
    if attribute == "forward" and getattr(module, "_compiled_call_impl", None) is not None:
        raise AlreadyCompiledError(
            f"compile of {attribute!r} was asked for, but {kind} is compiled already, by its own "
            "compile(), which is torch's. Drop that call, or leave this out."
        )
    present = vars(module).get(attribute)
    if isinstance(present, Region) and present.is_active:
        raise AlreadyCompiledError(
            f"compile of {attribute!r} was asked for, but {kind} is compiled already. "
            "Call undo() on the handle of the first compile_model before compiling again."
        )


def _group(modules: Sequence[NamedModule], attribute: str, config: CompileConfig) -> list[Region]:
    kinds: dict[object, RegionKind] = {}
    regions = []
    for name, module in modules:
        is_alone = not shares_code() or instance_method(module, attribute) is not None
        key = id(module) if is_alone else signature_of(module)
        if key not in kinds:
            kinds[key] = _make_kind(function_of(module, attribute), module, config)
        regions.append(Region(module, attribute, name, kinds[key]))
    return regions


def _make_kind(function: FunctionType, module: nn.Module, config: CompileConfig) -> RegionKind:
    kind = RegionKind(function, config)
    # Compiles nothing, but torch checks its arguments now.
    kind.code(mode_of(module))
    return kind
