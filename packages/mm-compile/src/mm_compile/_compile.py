"""``compile_model``: the one entrance."""

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from ._config import CompileConfig, check_against_torch, parse_config
from ._errors import ConfigError, MMCompileError
from ._handle import CompileHandle
from ._install import install_regions
from ._region import Region
from ._torch import describe_backend

_logger = logging.getLogger(__name__)


def compile_model(
    model: nn.Module,
    cfg: bool | Mapping[str, Any] | None = True,  # noqa: FBT001, FBT002 - a config value
) -> CompileHandle:
    """Compile ``model`` in place, as ``cfg`` says.

    The model stays the same object: its parameters, the keys of its ``state_dict``, its hooks and
    its training mode are untouched. Copies of it run eagerly. The config is checked here; compiling
    itself happens at the model's first call.

    Args:
        model: A module, or one wrapped by torch's ``DistributedDataParallel``.
        cfg: True for the defaults; False or None for nothing; or the keyword arguments of this
            torch's ``torch.compile`` (``backend``, ``mode``, ``dynamic``, ``fullgraph``,
            ``options``, ``disable``, ...) plus those below. Never changed.

            * ``target``: ``"forward"`` (the default) is what ``model(...)`` runs, in training and
              evaluation alike. ``"train_step"``, ``"val_step"``, ``"test_step"``, ``"loss"`` and
              ``"predict"`` are these methods of the very object given, ``train_step`` with
              backward and optimizer step included. A list of names compiles each.
            * ``regions``: ``"auto"`` compiles repeated blocks one by one, each kind of them once;
              a list of patterns (``["encoder.layers.*"]``) the modules so named.
            * ``on_error``: ``"raise"`` (the default), or ``"eager"`` to run a region that does not
              compile as it is, on all ranks.
            * ``recompile_limit`` (4): how often a region may be compiled again in each mode, and
              ``on_recompile`` what happens beyond: ``"dynamic"`` (the default) compiles once more
              for any size, then runs eagerly; ``"eager"``; ``"raise"``.
            * ``optimizer``: whether ``handle.compile_optimizer`` compiles the optimizer's step.

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
    config = parse_config(cfg)
    if not config.enabled:
        return CompileHandle(config, [])
    check_against_torch(config)
    regions = _install(model, config)
    backend = describe_backend(config.keywords)
    _logger.debug("compile: %s by %s", ", ".join(region.label for region in regions), backend)
    return CompileHandle(config, regions)


def _install(model: nn.Module, config: CompileConfig) -> list[Region]:
    try:
        return install_regions(model, config)
    except MMCompileError:
        raise
    except (AssertionError, RuntimeError, TypeError) as error:
        # torch.compile compiles nothing yet: what it refuses here is one of its arguments.
        raise ConfigError(f"torch.compile refused {config.keywords}: {error}") from error
