"""Batch normalisation over the batches of all ranks, on any device."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from mm_dist._info import get_world_size
from mm_dist._process_group import is_distributed


class SyncBatchNorm(nn.SyncBatchNorm):
    """torch's ``SyncBatchNorm``, which on the CPU works as well.

    On other devices it is torch's. On the CPU one collective in forward and one in backward
    exchange the statistics; ranks may have batches of different sizes, or none.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Normalise over all ranks when training, by the running statistics in evaluation.

        Args:
            input: Shape ``(n, num_features, ...)``.

        Returns:
            The same shape and dtype.
        """
        is_synchronized = self.training and is_distributed() and self._world_size() > 1
        if not is_synchronized:
            return _BatchNorm.forward(self, input)
        if input.device.type != "cpu":
            return super().forward(input)
        self._check_input_dim(input)
        self._check_non_zero_input_channels(input)
        return self._normalize_over_ranks(input)

    def _world_size(self) -> int:
        return get_world_size(self.process_group)

    def _normalize_over_ranks(self, batch: Tensor) -> Tensor:
        values = batch if batch.dtype == torch.float64 else batch.float()
        mean, variance, count = _moments_over_ranks(values, self.process_group)
        if self.track_running_stats:
            self._update_running_stats(mean.detach(), variance.detach(), count)
        shape = (1, -1) + (1,) * (batch.dim() - 2)
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        normalized = (values - mean.view(shape)) * scale.view(shape)
        if self.bias is not None:
            normalized = normalized + self.bias.view(shape)
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


def _moments_over_ranks(values: Tensor, group: Any) -> tuple[Tensor, Tensor, float]:
    """Return mean and biased variance of each channel, and the number of values of one."""
    dims = [0, *range(2, values.dim())]
    num_channels = values.size(1)
    num_values = values.numel() // num_channels
    own_mean = values.sum(dims) / max(num_values, 1)
    shape = (1, -1) + (1,) * (values.dim() - 2)
    own_squares = (values - own_mean.view(shape)).square().sum(dims)
    row = torch.cat([own_mean, own_squares, own_mean.new_tensor([num_values])])
    rows = _GatherRows.apply(row, group)  # type: ignore[no-untyped-call]
    # Combined by the means and squared deviations of the ranks: the difference of two large sums
    # would lose the digits that matter.
    means, squares, counts = rows.split([num_channels, num_channels, 1], dim=1)
    count = float(counts.detach().sum())
    if count == 0:  # on all ranks alike
        raise ValueError("expected a sample on one rank at least to normalise, got none")
    shares = counts.detach() / count
    mean = (shares * means).sum(0)
    variance = squares.sum(0) / count + (shares * (means - mean).square()).sum(0)
    return mean, variance, count


class _GatherRows(torch.autograd.Function):
    """Stack the row of each rank, shape ``(world_size, n)``; the gradient finds its way back."""

    @staticmethod
    def forward(ctx: Any, row: Tensor, group: Any) -> Tensor:
        ctx.group = group
        rows = [torch.empty_like(row) for _ in range(dist.get_world_size(group))]
        dist.all_gather(rows, row.contiguous(), group=group)
        return torch.stack(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_rows: Tensor) -> tuple[Tensor, None]:
        grad_rows = grad_rows.contiguous()
        dist.all_reduce(grad_rows, group=ctx.group)
        return grad_rows[dist.get_rank(ctx.group)], None
