"""Overflows on two gloo ranks: all ranks name the same parameters and stop together."""

import logging
import math

import pytest
import torch
from conftest import needs_cpu_float16
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mm_amp import AmpOptimWrapper, NonFiniteError, OptimWrapper

needs_sharding = pytest.mark.skipif(
    not hasattr(getattr(getattr(torch, "cpu", None), "Stream", None), "record_event"),
    reason="sharding works on the CPU after torch 2.6",
)


class _Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []
        logger = logging.getLogger("mm_amp._scaling._locator")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record):
        self.messages.append(record.getMessage())


def _make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def _sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _step(wrapper, model, factor=1.0):
    with wrapper.optim_context(model):
        loss = model(torch.ones(3, 4)).float().square().mean()
    return wrapper.update_params(loss * factor)


def _steps_until_error(wrapper, model, factor):
    for index in range(5):
        try:
            _step(wrapper, model, factor)
        except NonFiniteError as error:
            return index, str(error)
    return None


def _bad_loss_on_one_rank(rank, dtype):
    """Let rank 0 alone have a loss that is not finite; DDP then spreads it by the gradients."""
    model = DistributedDataParallel(_make_model())
    wrapper = (
        AmpOptimWrapper(_sgd(model), {"init_scale": 64.0}, dtype, max_skips=2)
        if dtype
        else OptimWrapper(_sgd(model), max_skips=2)
    )
    _step(wrapper, model)
    return _steps_until_error(wrapper, model, math.nan if rank == 0 else 1.0)


@pytest.mark.parametrize(
    "dtype", [None, "bfloat16", pytest.param("float16", marks=needs_cpu_float16)]
)
def test_ranks_of_ddp_stop_together(rank_pool, dtype):
    first, second = rank_pool.run(_bad_loss_on_one_rank, dtype)
    assert first[0] == second[0] == 1
    for message in (first[1], second[1]):
        assert "2.bias of 2 (Linear), torch.float32, norm nan" in message


def _overflow_in_one_shard(rank, dtype):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - new torch

    model = _make_model()
    fully_shard(model[0])
    fully_shard(model)
    wrapper = AmpOptimWrapper(_sgd(model), {"init_scale": 64.0}, dtype, max_skips=2)
    log = _Messages()
    _step(wrapper, model)

    step = wrapper.step

    def spoil_and_step():
        if rank == 1:  # the second of two elements, one on each rank
            model[2].bias.grad.to_local()[0] = math.inf
        return step()

    wrapper.step = spoil_and_step
    found = _steps_until_error(wrapper, model, 1.0)
    logging.getLogger("mm_amp._scaling._locator").removeHandler(log)
    is_finite = all(bool(p.to_local().isfinite().all()) for p in model.parameters())
    return found, log.messages, is_finite


@needs_sharding
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_overflow_in_a_shard_is_named_on_all_ranks(rank_pool, dtype):
    first, second = rank_pool.run(_overflow_in_one_shard, dtype)
    assert first == second
    (index, message), (logged,), is_finite = first
    assert index == 1
    assert is_finite
    for text in (message, logged):
        assert "2.bias of the model (FSDP" in text or "2.bias of 2 (Linear)" in text
        assert "norm inf (1 of 4 gradients)" in text
