"""Batch normalisation as torch has it."""

from __future__ import annotations

from torch import nn

from ._variants import own_class

__all__ = ["is_batch_norm"]

_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether ``module`` is torch's batch normalisation, of one process or of several.

    A subclass of the user's may compute something else.
    """
    kind = own_class(module)
    return kind in _KINDS or issubclass(kind, nn.SyncBatchNorm)
