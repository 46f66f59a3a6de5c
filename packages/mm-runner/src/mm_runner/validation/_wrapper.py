"""The wrapper of a model in a run of several processes."""

from __future__ import annotations

import inspect
from typing import Any

from torch.nn.parallel import DistributedDataParallel

import mm_dist
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import MODEL_WRAPPERS, check_arguments

from ._components import check_component, check_known, need_mapping

__all__ = ["check_model_wrapper"]

# Those that pass what is no argument of their own on, in the end to torch's.
_PASSING_ON = (mm_dist.MMDistributedDataParallel, mm_dist.MMSeparateDistributedDataParallel)
# Names of one argument in different versions of torch; each is taken by every one.
_RENAMED = ("broadcast_buffers", "forward_sync_buffers")
# How alike a key must be to ``type`` to be taken for it.
_SLIP = 0.8


def check_model_wrapper(cfg: Any, where: str) -> None:
    """Check ``model_wrapper_cfg``, also what only the processes of a larger run would tell.

    Raises:
        ConfigError: If it is no dict, or has an argument that the wrapper does not take.
        ComponentNotFoundError: If its ``type`` names nothing.
    """
    if "type" not in need_mapping(cfg, where):
        check_known(cfg, where, ("type",), cutoff=_SLIP)
    component: Any = check_component(
        cfg, MODEL_WRAPPERS, where, default="MMDistributedDataParallel", given=("module",)
    )
    # A class of the user's own may make anything of **kwargs.
    if component.__init__ not in [one.__init__ for one in _PASSING_ON]:
        return
    known = {**_arguments(_PASSING_ON[0]), **_arguments(component)}
    passed_on = {key: cfg[key] for key in cfg if key not in known and key != "type"}
    taken = [*known, *_arguments(DistributedDataParallel), *_RENAMED]
    for key in passed_on:
        if key not in taken:
            raise ConfigError(
                f"{where}.{key}: unknown argument of {component.__name__}, which takes "
                f"{', '.join(dict.fromkeys(taken))}.{did_you_mean(str(key), taken)}"
            )
        # Torch does not say what it takes; None is its default.
        if key in _RENAMED and not isinstance(cfg[key], (bool, type(None))):
            raise ConfigError(f"{where}.{key}: True or False is needed, got {cfg[key]!r}.")
    torchs = {key: value for key, value in passed_on.items() if key not in _RENAMED}
    check_arguments(DistributedDataParallel, torchs, where, is_partial=True)


def _arguments(component: type) -> dict[str, inspect.Parameter]:
    """Return what ``component`` takes by name, but for the module, which the run gives."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(component).parameters
    return {
        name: one for name, one in parameters.items() if one.kind in by_name and name != "module"
    }
