"""Private names of torch that this package uses, each with what happens without it.

==================================  ==============================================================
Name                                Without it
==================================  ==============================================================
``torch._foreach_copy_``            Stacks are copied back tensor by tensor (torch before 2.1)
``Tensor._is_view``                 Views of DDP's gradient buckets are not refused on an NPU
``_fsdp_flattened``,                Parameters of torch's first FSDP are not refused
``_is_flat_param``
==================================  ==============================================================
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# Marks that torch's first FSDP puts on parameters it was given, and on those it makes of them.
_FLAT_PARAMETER_MARKS = ("_fsdp_flattened", "_is_flat_param")


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target."""
    copy_many = getattr(torch, "_foreach_copy_", None)
    if copy_many is not None:
        copy_many(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def is_view(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is a view of another tensor; False if torch does not say."""
    ask = getattr(tensor, "_is_view", None)
    return ask is not None and bool(ask())


def is_flattened(p: Tensor) -> bool:
    """Return whether torch's first FSDP manages ``p``."""
    return any(getattr(p, mark, False) for mark in _FLAT_PARAMETER_MARKS)
