"""``compile_model``."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from ._backend import unsupported_keywords
from ._cache._code_cache import open_cache
from ._config import TRAINED, CompileConfig, check_against_torch, parse_config, with_keywords
from ._device_graphs import DeviceGraphs, records_graphs
from ._errors import ConfigError, MMCompileError
from ._gc import rare_collections
from ._handle import CompileHandle
from ._install import install_regions, unwrapped
from ._model_call import ModelCall
from ._region import Region
from ._torch import describe_backend
from ._verify import Verifier
from ._warm_up import WarmUp

_logger = logging.getLogger(__name__)


@rare_collections  # imports torch's compiler
def compile_model(
    model: nn.Module,
    cfg: bool | str | Mapping[str, Any] | None = True,  # noqa: FBT001, FBT002 - a config value
    **keywords: Any,
) -> CompileHandle:
    """Compile ``model`` in place, as ``cfg`` says.

    The model stays the same object: its parameters, the keys of its ``state_dict``, its hooks and
    its training mode do not change. Copies of it run eagerly. The config is checked here; compiling
    happens at the model's first call. Go on with the model, not with the handle.

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
              It is code that runs: one that other users can write is not used, unless
              ``dict(dir=..., trusted=True)`` says so.
            * ``optimizer``: whether ``handle.compile_optimizer`` compiles the optimizer's step.
            * ``disable="auto"``: run the first training steps eagerly and time them, then compile
              if that is expected to save more than it costs in the steps that are left
              (``handle.expect_steps``); undo it if it does not. All ranks do as rank 0.
              ``cfg="auto"`` also sets ``regions="auto"`` and ``on_error="eager"``.
            * ``measure`` (0): True or how many training steps to run eagerly at first, so that the
              report compares eager and compiled steps.
            * ``verify``: True or in how many training calls of each region to compare outputs and
              gradients with eager ones, or a dict of ``steps``, ``rtol`` and ``atol``. A region
              that deviates runs eagerly or raises ``NumericsError``, as ``on_error`` says.
        **keywords: Keys of ``cfg``, as in ``compile_model(model, mode="max-autotune")``.

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
    config = parse_config(with_keywords(cfg, keywords))
    if not config.enabled:
        return CompileHandle(config, [])
    check_against_torch(config)
    config = dataclasses.replace(
        config,
        keywords=_supported_keywords(config),
        code_cache=open_cache(config.cache, config.keywords, is_trusted=config.is_cache_trusted),
    )
    regions = _install(model, config)
    verifier = None
    if config.verify is not None:
        verifier = Verifier(config)
        for region in regions:
            region.check = partial(verifier.check, region)
    inner = unwrapped(model)
    model_call, graphs = _watch_calls(inner, regions, config)
    count = (lambda: 0) if verifier is None else (lambda: verifier.num_comparisons)
    warm_up = WarmUp(inner, regions, config, model_call, count)
    return CompileHandle(config, regions, warm_up, verifier, [model_call, *graphs])


def _supported_keywords(config: CompileConfig) -> dict[str, Any]:
    names = unsupported_keywords(config.keywords)
    for name in names:
        _logger.warning(
            "compile: %s=%r is left out: backend %r does not take it, inductor does.",
            name,
            config.keywords[name],
            describe_backend(config.keywords),
        )
    return {name: value for name, value in config.keywords.items() if name not in names}


def _watch_calls(
    model: nn.Module, regions: Sequence[Region], config: CompileConfig
) -> tuple[ModelCall, list[DeviceGraphs]]:
    # Of several methods, one that runs in training.
    root = next((each for each in regions if each.attribute in TRAINED), regions[0])
    model_call = ModelCall(model, is_installed=bool(root.name))
    root.model_call = model_call
    if not records_graphs(config.keywords):
        return model_call, []
    graphs = DeviceGraphs(model.parameters())
    model_call.on_begin.append(graphs.begin)
    model_call.on_end.append(graphs.copy_outputs)
    return model_call, [graphs]


def _install(model: nn.Module, config: CompileConfig) -> list[Region]:
    try:
        return install_regions(model, config)
    except MMCompileError:
        raise
    except (AssertionError, RuntimeError, TypeError) as error:
        # torch.compile compiles nothing yet: it refuses one of its arguments.
        raise ConfigError(f"torch.compile refused {config.keywords}: {error}") from error
