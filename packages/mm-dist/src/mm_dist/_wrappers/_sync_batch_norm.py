"""Batch normalisation over the batches of all ranks, on any device: conversion and layer."""

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mm_dist._errors import ArgumentTypeError, ConfigError
from mm_dist._info import get_world_size
from mm_dist._process_group import is_distributed
from mm_dist._torch_private import BATCH_NORM, BatchNorm
from mm_dist._warning import warn_caller

_Module = TypeVar("_Module", bound=nn.Module)
# The class that a converted module had.
_FORMER_CLASS = "_mm_dist_former_class"


def convert_sync_batchnorm(
    module: _Module, implementation: str = "torch", *, process_group: Any = None
) -> _Module:
    """Convert every batch normalisation in a model to one over all ranks.

    The modules change their class in place. Parameters, statistics, settings, hooks, ``training``
    and who shares what stay as they are, so an optimizer may exist already. What cannot be
    converted keeps to its rank, with a warning.

    Args:
        module: The model, or a batch normalisation itself; lazy ones included.
        implementation: Only ``"torch"``: a subclass of ``torch.nn.SyncBatchNorm``, which works on
            the CPU too.
        process_group: Ranks to normalise over. Defaults to all.

    Returns:
        ``module``.

    Raises:
        ArgumentTypeError: If ``module`` is no module.
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
    _check_module(module, "convert_sync_batchnorm")
    for name, child in module.named_modules():
        if isinstance(child, SyncBatchNorm):
            child.process_group = process_group
        elif isinstance(child, BATCH_NORM):
            _convert(name, child, process_group)
        elif str(getattr(child, "original_name", "")).startswith("BatchNorm"):
            _warn(name, child, "it is compiled by TorchScript; convert the model before scripting")
    return module


def revert_sync_batchnorm(module: _Module) -> _Module:
    """Undo ``convert_sync_batchnorm``: let each rank, or a single process, use its own batch.

    Modules that torch's own conversion has made accept inputs of any number of dimensions
    afterwards: what they were is not known.

    Args:
        module: The model; changed in place, as in the conversion.

    Returns:
        ``module``.

    Raises:
        ArgumentTypeError: If ``module`` is no module.

    Example:
        >>> type(revert_sync_batchnorm(convert_sync_batchnorm(nn.BatchNorm2d(3)))).__name__
        'BatchNorm2d'
    """
    _check_module(module, "revert_sync_batchnorm")
    for child in module.modules():
        former = child.__dict__.pop(_FORMER_CLASS, None)
        if isinstance(child, nn.SyncBatchNorm):
            child.__class__ = former or BatchNorm  # type: ignore[assignment]
            child.__dict__.pop("process_group", None)
        elif former is not None:  # still lazy
            for name in ("cls_to_become", "process_group"):
                child.__dict__.pop(name, None)
    return module


def _check_module(module: object, function: str) -> None:
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(
            f"{function} takes a torch.nn.Module, got {type(module)}; pass the model."
        )


def _convert(name: str, child: Any, process_group: Any) -> None:
    kind = type(child)
    lazy_target = getattr(child, "cls_to_become", None)
    if lazy_target is not None:
        # torch gives it this class when its first batch tells the number of channels.
        child.__dict__["cls_to_become"] = SyncBatchNorm
        child.__dict__.update({_FORMER_CLASS: lazy_target, "process_group": process_group})
        return
    reason = _reason_against(kind)
    if reason is not None:
        _warn(name, child, reason)
        return
    try:
        child.__class__ = SyncBatchNorm
    except TypeError as error:
        _warn(name, child, str(error))
        return
    child.process_group = process_group
    if kind is not nn.SyncBatchNorm:
        child.__dict__[_FORMER_CLASS] = kind


def _reason_against(kind: type[Any]) -> str | None:
    if kind is nn.SyncBatchNorm:
        return None
    if kind.forward is not nn.BatchNorm1d.forward:
        return "its class has a forward of its own, which would be lost"
    if any(isinstance(vars(base).get("weight"), property) for base in kind.__mro__):
        return "its weight is parametrized; convert the model before that"
    return None


def _warn(name: str, child: nn.Module, reason: str) -> None:
    warn_caller(
        f"{name or 'The module'} ({type(child).__name__}) still normalises over its own rank: "
        f"{reason}."
    )


class SyncBatchNorm(nn.SyncBatchNorm):
    """torch's ``SyncBatchNorm``, which on the CPU works as well.

    On other devices it is torch's. On the CPU one collective in forward and one in backward
    exchange the statistics; ranks may have batches of different sizes, or none.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Normalise over all ranks in training, by the running statistics in evaluation.

        Args:
            input: Shape ``(n, num_features, ...)``.

        Returns:
            The same shape and dtype.
        """
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, got {input.dim()}")
        is_alone = not is_distributed() or get_world_size(self.process_group) == 1
        if is_alone or not self.training:
            plain: Any = nn.BatchNorm1d.forward  # that of every batch normalisation
            return plain(self, input)  # type: ignore[no-any-return]
        if input.device.type != "cpu":
            return super().forward(input)
        return self._normalize_over_ranks(input)

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
    """Return mean and biased variance of each channel, and the number of values per channel."""
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
    """Differentiable all-gather of one row per rank, to shape ``(world_size, n)``."""

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
