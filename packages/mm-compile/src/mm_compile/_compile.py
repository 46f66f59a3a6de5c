"""``compile_model``: the one entrance."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from ._backend_keywords import taken
from ._cache._code_cache import open_cache
from ._config import CompileConfig, check_against_torch, parse_config, with_keywords
from ._device_graphs import DeviceGraphs, records_graphs
from ._errors import ConfigError, MMCompileError
from ._garbage import rare_collections
from ._handle import CompileHandle
from ._install import install_regions, unwrapped
from ._known_bad import tell_known_bad
from ._outermost import OutermostCall
from ._receipt._config import TRAINED
from ._region import Region
from ._torch import describe_backend
from ._verify._verifier import Verifier
from ._warm_up._warm_up import WarmUp

_logger = logging.getLogger(__name__)


@rare_collections  # torch's compiler is imported
def compile_model(
    model: nn.Module,
    cfg: bool | str | Mapping[str, Any] | None = True,  # noqa: FBT001, FBT002 - a config value
    **keywords: Any,
) -> CompileHandle:
    """Compile ``model`` in place, as ``cfg`` says.

    The model stays the same object: its parameters, the keys of its ``state_dict``, its hooks and
    its training mode are untouched. Copies of it run eagerly. The config is checked here; compiling
    itself happens at the model's first call. The handle is no model: go on with the one given.

    Args:
        model: A module, or one wrapped by torch's ``DistributedDataParallel``.
        cfg: True for the defaults; False or None for nothing; ``"auto"`` for what pays (see
            below); or the keyword arguments of this torch's ``torch.compile`` (``backend``,
            ``mode``, ``dynamic``, ``fullgraph``, ``options``, ``disable``, ...) plus those below.
            Never changed.

            * ``target``: ``"forward"`` (the default) is what ``model(...)`` runs, in training and
              evaluation alike. ``"train_step"``, ``"val_step"``, ``"test_step"``, ``"loss"`` and
              ``"predict"`` are these methods of the very object given, ``train_step`` with
              backward and optimizer step included. A list of names compiles each.
            * ``regions``: ``"auto"`` compiles repeated blocks one by one, each kind of them once;
              a list of patterns (``["encoder.layers.*"]``) the modules so named.
            * ``on_error``: ``"raise"`` (the default), or ``"eager"`` to run a region that does not
              compile as it is, on all ranks. A lack of memory and an ``OSError`` are always raised.
            * ``recompile_limit`` (4): how often a region may be compiled again in each mode, and
              ``on_recompile`` what happens beyond: ``"dynamic"`` (the default) compiles once more
              for any size, then runs eagerly; ``"eager"``; ``"raise"``.
            * ``cache``: a directory in which inductor's compiled code is kept, so that the next
              run starts warm; give all runs of a project the same one. It is code that runs: what
              other users can write is not used, unless ``dict(dir=..., trusted=True)`` says so.
            * ``optimizer``: whether ``handle.compile_optimizer`` compiles the optimizer's step.
            * ``disable="auto"``: the first training steps run eagerly and are timed. Then regions
              are compiled, the largest group of equal ones first, as long as what they save in the
              steps that are left (``handle.expect_steps``) is more than compiling takes. Which of
              it holds is logged; all ranks do as rank 0. ``cfg="auto"`` is ``disable="auto"`` with
              ``regions="auto"`` and ``on_error="eager"``.
            * ``measure`` (0): True or how many training steps run eagerly at first, after two that
              do not count, so that the report compares eager and compiled steps.
            * ``verify``: True or in how many training calls (of each region) outputs and gradients
              are compared with eager ones first, or a dict of ``steps``, ``rtol`` and ``atol``.
              Training is the same with and without. A region that deviates more runs eagerly or
              raises ``NumericsError``, as ``on_error`` says.
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
    backend = describe_backend(config.keywords)
    config = dataclasses.replace(
        config,
        keywords=taken(config.keywords, backend),
        code_cache=open_cache(config.cache, config.keywords, is_trusted=config.is_cache_trusted),
    )
    tell_known_bad(model, config)
    regions = _install(model, config)
    _logger.debug("compile: %s by %s", ", ".join(region.label for region in regions), backend)
    verifier = Verifier(config, len(regions)) if config.verify is not None else None
    if verifier is not None:
        for region in regions:
            region.check = partial(verifier.check, region)
    inner = unwrapped(model)
    outermost, graphs = _watch_calls(inner, regions, config)
    count = (lambda: 0) if verifier is None else (lambda: verifier.num_comparisons)
    warm_up = WarmUp(inner, regions, config, outermost, count)
    return CompileHandle(config, regions, warm_up, verifier, [outermost, *graphs])


def _watch_calls(
    model: nn.Module, regions: Sequence[Region], config: CompileConfig
) -> tuple[OutermostCall, list[DeviceGraphs]]:
    # Of several methods, one that training calls.
    root = next((each for each in regions if each.attribute in TRAINED), regions[0])
    outermost = OutermostCall(model, is_installed=bool(root.name))
    root.outermost = outermost
    if root.agreement is not None:
        outermost.listeners.append(root.agreement.read)
    if not records_graphs(config.keywords):
        return outermost, []
    graphs = DeviceGraphs(model.parameters())
    outermost.listeners.append(graphs.begin)
    outermost.keepers.append(graphs.keep)
    return outermost, [graphs]


def _install(model: nn.Module, config: CompileConfig) -> list[Region]:
    try:
        return install_regions(model, config)
    except MMCompileError:
        raise
    except (AssertionError, RuntimeError, TypeError) as error:
        # torch.compile compiles nothing yet: what it refuses here is one of its arguments.
        raise ConfigError(f"torch.compile refused {config.keywords}: {error}") from error
