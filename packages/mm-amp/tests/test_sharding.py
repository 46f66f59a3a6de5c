"""Sharded models on two gloo ranks, where the gradients of one are spread: clipping and scaling."""

import warnings

import pytest
import torch
from torch import nn

from mm_amp import ConfigError, OptimWrapper, UnsupportedError

_CAN_SHARD_ON_CPU = hasattr(getattr(getattr(torch, "cpu", None), "Stream", None), "record_event")
needs_sharding = pytest.mark.skipif(
    not _CAN_SHARD_ON_CPU, reason="sharding works on the CPU after torch 2.6"
)


def _make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def _batch(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(6, 4, generator=generator), torch.randn(6, 1, generator=generator)


def _step(wrapper, model, batch):
    with wrapper.optim_context(model):
        loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1])
    return wrapper.update_params(loss)


def _unsharded_step(clip_grad, batches):
    """Step one process on all batches; return norm and parameters."""
    model = _make_model()
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1), clip_grad=clip_grad)
    both = tuple(torch.cat(column) for column in zip(*batches, strict=True))
    result = _step(wrapper, model, both)
    return result.grad_norm, list(model.parameters())


def _refuse_first_fsdp(_rank):
    from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: PLC0415 - slow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: deprecations, and no accelerator here
        model = FullyShardedDataParallel(_make_model(), device_id=torch.device("cpu"))
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(UnsupportedError, match=r"shard it with .*fully_shard"):
        wrapper.optim_context(model)


@needs_sharding
def test_first_fsdp_is_refused_at_the_first_forward(rank_pool):
    rank_pool.run(_refuse_first_fsdp)


def _clip_partly_sharded(clip_grad):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - new torch

    batch = _batch(0)  # the same on both: the part that is not sharded is not averaged either
    norm, expected = _unsharded_step(clip_grad, [batch])
    model = _make_model()
    fully_shard(model[0])
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1), clip_grad=clip_grad)
    result = _step(wrapper, model, batch)
    torch.testing.assert_close(result.grad_norm, norm)
    assert norm is None or type(result.grad_norm) is torch.Tensor
    for parameter, value in zip(model.parameters(), expected, strict=True):
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        torch.testing.assert_close(whole.detach(), value.detach())


def _clip_fully_sharded(rank, clip_grad):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - new torch

    norm, expected = _unsharded_step(clip_grad, [_batch(0), _batch(1)])
    model = _make_model()
    fully_shard(model)
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1), clip_grad=clip_grad)
    result = _step(wrapper, model, _batch(rank))
    torch.testing.assert_close(result.grad_norm, norm)
    for parameter, value in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.full_tensor().detach(), value.detach())


def _check_fully_shard(rank):
    for clip_grad in (
        {"max_norm": 0.05},
        {"max_norm": 0.05, "norm_type": 1},
        {"max_norm": 0.05, "norm_type": float("inf")},  # one rank's part of the last bias is empty
        {"type": "value", "clip_value": 0.01},
        {"type": "agc", "clip_factor": 0.02},
    ):
        _clip_fully_sharded(rank, clip_grad)
        _clip_partly_sharded(clip_grad)


@needs_sharding
def test_clipping_under_fully_shard_equals_that_of_the_whole_model(rank_pool):
    rank_pool.run(_check_fully_shard)


def _refuse_weights_without_a_model(rank):
    model = _make_model()
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    loss = model(_batch(rank)[0]).mean()
    with pytest.raises(ConfigError, match="no forward ran in optim_context"):
        wrapper.update_params(loss, weight=6)


def test_weights_in_a_distributed_run_need_the_model(rank_pool):
    rank_pool.run(_refuse_weights_without_a_model)
