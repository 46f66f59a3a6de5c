"""Check the config of a model wrapper."""

from __future__ import annotations

import inspect
from typing import Any

from torch.nn.parallel import DistributedDataParallel

import mm_dist
from mm_runner.registry import MODEL_WRAPPERS

from ._components import check_component, check_known, need_mapping

__all__ = ["check_model_wrapper"]

# These pass unknown arguments on to torch's wrapper.
_PASSING_ON = (mm_dist.MMDistributedDataParallel, mm_dist.MMSeparateDistributedDataParallel)
# Names of one argument in different versions of torch; each is taken by every one.
_RENAMED = ("broadcast_buffers", "forward_sync_buffers")


def check_model_wrapper(cfg: Any, where: str) -> None:
    """Check ``model_wrapper_cfg``, in a run of one process too.

    Raises:
        ConfigError: If it is no dict, or has an argument that the wrapper does not take.
        ComponentNotFoundError: If its ``type`` names nothing.
    """
    need_mapping(cfg, where)
    component: Any = check_component(
        cfg, MODEL_WRAPPERS, where, default="MMDistributedDataParallel", given=("module",)
    )
    # A class of the user's own may make anything of **kwargs.
    if component.__init__ not in [one.__init__ for one in _PASSING_ON]:
        return
    takers = (*_PASSING_ON[:1], component, DistributedDataParallel)
    known = [name for one in takers for name in inspect.signature(one).parameters]
    known = [name for name in dict.fromkeys((*known, *_RENAMED)) if name != "module"]
    check_known(cfg, where, ("type", *known))
