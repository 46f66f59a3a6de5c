"""Batch normalization over the batches of all ranks, on any device: conversion and layer."""

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mm_dist._errors import ConfigError
from mm_dist._info import get_world_size
from mm_dist._message import warn_caller
from mm_dist._state import is_distributed
from mm_dist._torch_private import BATCH_NORM, BatchNorm

_Module = TypeVar("_Module", bound=nn.Module)
# The class that a converted module had.
_FORMER_CLASS = "_mm_dist_former_class"


def convert_sync_batchnorm(
    module: _Module, implementation: str = "torch", *, process_group: Any = None
) -> _Module:
    """Convert every batch normalization in a model to one over all ranks.

    The modules change their class in place. Parameters, statistics, settings, hooks, ``training``
    and who shares what stay as they are, so an optimizer may exist already. Lazy ones, and classes
    with a forward of their own, keep to their rank, with a warning.

    Args:
        module: The model, or a batch normalization itself.
        implementation: Only ``"torch"``: a subclass of ``torch.nn.SyncBatchNorm``, which works on
            the CPU too.
        process_group: Ranks to normalize over. Defaults to all.

    Returns:
        ``module``.

    Raises:
        ConfigError: If the implementation is not known.

    Example:
        >>> type(convert_sync_batchnorm(nn.BatchNorm2d(3))).__name__
        'SyncBatchNorm'
    """
    if implementation != "torch":
        raise ConfigError(
            f"implementation={implementation!r} is not supported; only 'torch' is, a subclass of "
            "torch.nn.SyncBatchNorm."
        )
    for name, child in module.named_modules():
        kind = type(child)
        if not isinstance(child, BATCH_NORM) or isinstance(child, SyncBatchNorm):
            continue
        is_own = kind is not nn.SyncBatchNorm and kind.forward is not nn.BatchNorm1d.forward
        if is_own or hasattr(child, "cls_to_become"):
            reason = "its class has a forward of its own" if is_own else "it is lazy; run it first"
            warn_caller(
                f"{name or 'The module'} ({kind.__name__}) still normalizes over its own rank: "
                f"{reason}."
            )
            continue
        child.__class__ = SyncBatchNorm
        child.process_group = process_group
        child.__dict__[_FORMER_CLASS] = BatchNorm if kind is nn.SyncBatchNorm else kind
    return module


def revert_sync_batchnorm(module: _Module) -> _Module:
    """Undo ``convert_sync_batchnorm``: let each rank, or a single process, use its own batch.

    Modules that torch's own conversion has made accept inputs of any number of dimensions
    afterwards: what they were is not known.

    Args:
        module: The model; changed in place, as in the conversion.

    Returns:
        ``module``.

    Example:
        >>> type(revert_sync_batchnorm(convert_sync_batchnorm(nn.BatchNorm2d(3)))).__name__
        'BatchNorm2d'
    """
    for child in module.modules():
        if isinstance(child, nn.SyncBatchNorm):
            child.__class__ = child.__dict__.pop(_FORMER_CLASS, BatchNorm)
            child.__dict__.pop("process_group", None)
    return module


class SyncBatchNorm(nn.SyncBatchNorm):
    """torch's ``SyncBatchNorm``, which on the CPU works as well.

    On other devices it is torch's. On the CPU one all-reduce in forward and one in backward
    exchange the sums; ranks may have batches of different sizes, or none.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Normalize over all ranks in training, by the running statistics in evaluation."""
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, got {input.dim()}")
        is_alone = not is_distributed() or get_world_size(self.process_group) == 1
        if is_alone or not self.training:
            plain: Any = nn.BatchNorm1d.forward  # that of every batch normalization
            return plain(self, input)  # type: ignore[no-any-return]
        if input.device.type != "cpu":
            return super().forward(input)
        return self._normalize_over_ranks(input)

    def _normalize_over_ranks(self, batch: Tensor) -> Tensor:
        # In double: the difference of large sums would lose the digits that matter.
        values = batch.double()
        dims = [0, *range(2, batch.dim())]
        own_count = values.new_tensor([batch.numel() // batch.size(1)])
        own = torch.cat([values.sum(dims), values.square().sum(dims), own_count])
        totals: Tensor = _SumOverRanks.apply(own, self.process_group)  # type: ignore[no-untyped-call]
        count = float(totals[-1].detach())
        if count == 0:  # on all ranks alike
            raise ValueError("expected a sample on one rank at least to normalize, got none")
        mean, mean_square = (totals[:-1] / count).chunk(2)
        variance = (mean_square - mean.square()).clamp(min=0)
        if self.track_running_stats:
            self._update_running_stats(mean.detach(), variance.detach(), count)
        shape = (1, -1) + (1,) * (batch.dim() - 2)
        normalized = (values - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normalized = normalized * self.weight.view(shape) + self.bias.view(shape)
        return normalized.to(batch.dtype)

    def _update_running_stats(self, mean: Tensor, variance: Tensor, count: float) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = self.momentum
        if weight is None:  # a cumulative average
            weight = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)


class _SumOverRanks(torch.autograd.Function):
    """Add a tensor over all ranks, and its gradient too."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None
