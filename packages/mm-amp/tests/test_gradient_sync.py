"""Real DDP and fully_shard on two gloo ranks: when gradients are exchanged, and what comes out."""

import copy
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from conftest import train_step
from recording import RecordingSGD, make_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mm_amp import AmpOptimWrapper, OptimWrapper

_RANKS = 2


def _make_batches(total):
    """Return ``total`` micro-batches per rank, as ``batches[i][rank] = (inputs, targets)``."""
    generator = torch.Generator().manual_seed(1)

    def rows(columns):
        return torch.randn(3, columns, generator=generator, dtype=torch.float64)

    return [[(rows(4), rows(1)) for _ in range(_RANKS)] for _ in range(total)]


def _train_on_big_batches(model, batches, window):
    """Return the gradients of each step of a single process that sees whole windows at once."""
    optimizer = RecordingSGD(model.parameters(), lr=0.1)
    for start in range(0, len(batches), window):
        parts = [part for ranks in batches[start : start + window] for part in ranks]
        inputs, targets = (torch.cat(column) for column in zip(*parts, strict=True))
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer.seen


def _double_step(wrapper, model, batch):
    with wrapper.optim_context(model):
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
    return wrapper.update_params(loss)


def _expect_big_batch_gradients(rank, window, total):
    model = make_model()
    expected = _train_on_big_batches(copy.deepcopy(model), batches := _make_batches(total), window)
    reductions = []

    def count_and_average(_, bucket):
        reductions.append(bucket.index())
        work = dist.all_reduce(bucket.buffer().div_(_RANKS), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(None, count_and_average)
    optimizer = RecordingSGD(model.parameters(), lr=0.1)
    wrapper = OptimWrapper(optimizer, accumulative_counts=window)
    wrapper.initialize_count_status(parallel, 0, total)
    for ranks in batches:
        _double_step(wrapper, parallel, ranks[rank])
        assert parallel.require_backward_grad_sync, "no_sync was left open"
    torch.testing.assert_close(optimizer.seen, expected)
    assert reductions == [0] * len(expected), "one all-reduce per bucket and optimizer step"


def _expect_sharded_scaler_to_agree(rank):
    """An overflow on one rank is one on all, though nothing else is exchanged."""
    model = make_model().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = AmpOptimWrapper(optimizer, {"init_scale": 64.0}, "float16", use_fsdp=True)
    inputs, targets = (tensor.float() for tensor in _make_batches(1)[0][rank])
    factor = float("inf") if rank == 0 else 1.0
    assert train_step(wrapper, model, (inputs, targets * factor)).skipped
    assert wrapper.loss_scaler.get_scale() == 32.0


def _expect_ddp(rank):
    if hasattr(torch, "get_autocast_dtype"):  # float16 on the CPU needs torch 2.4
        _expect_sharded_scaler_to_agree(rank)
    for window, total in [(1, 3), (2, 5), (3, 7)]:
        _expect_big_batch_gradients(rank, window, total)


def test_ddp_accumulation_equals_the_big_batch_with_one_all_reduce_per_step(run_ranks):
    run_ranks(_expect_ddp, _RANKS)


def _expect_sharded(rank):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - new torch

    model = make_model()
    expected = _train_on_big_batches(copy.deepcopy(model), batches := _make_batches(5), window=2)
    fully_shard(model[0])
    fully_shard(model[2])  # the root stays whole: the wrapper has to look inside it
    optimizer = RecordingSGD(model.parameters(), lr=0.1)
    wrapper = OptimWrapper(optimizer, accumulative_counts=2, clip_grad={"max_norm": 1e9})
    wrapper.initialize_count_status(model, 0, 5)
    for ranks in batches:
        result = _double_step(wrapper, model, ranks[rank])
        # Where nothing was exchanged, the shards have no gradient yet.
        assert result.stepped or model[0].weight.grad is None
    torch.testing.assert_close(optimizer.seen, expected)
    norm = torch.stack([grad.norm() for grad in expected[-1]]).norm()
    torch.testing.assert_close(result.grad_norm, norm)  # of the whole gradient, not of a shard


def _expect_sharded_overflow(rank):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - new torch

    model = make_model().float()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = AmpOptimWrapper(optimizer, {"init_scale": 64.0}, "float16")
    inputs, targets = (tensor.float() for tensor in _make_batches(1)[0][rank])
    for factor, is_skipped in [(1.0, False), (float("inf") if rank == 0 else 1.0, True)]:
        result = train_step(wrapper, model, (inputs, targets * factor))
        assert result.skipped == is_skipped, "an overflow on one rank is one on all"
    assert wrapper.loss_scaler.get_scale() == 32.0


def _expect_fully_shard(rank):
    _expect_sharded(rank)
    _expect_sharded_overflow(rank)


def _can_shard_on_cpu():
    # fully_shard is there from torch 2.6 on; that one asks CPU streams for what they do not have.
    cpu = getattr(torch, "cpu", None)
    return hasattr(torch, "accelerator") and hasattr(getattr(cpu, "Stream", None), "record_event")


@pytest.mark.skipif(not _can_shard_on_cpu(), reason="torch cannot shard on the CPU")
def test_fully_shard_accumulation_equals_the_big_batch(run_ranks):
    run_ranks(_expect_fully_shard, _RANKS)


class _SyncLog(nn.Module):
    """Stands in for a distributed wrapper: notes when gradients would not be exchanged."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.is_off = False

    def forward(self, inputs):
        return self.module(inputs)

    @contextmanager
    def no_sync(self):
        assert not self.is_off, "entered twice"
        self.is_off = True
        try:
            yield
        finally:
            self.is_off = False


@pytest.fixture
def sync_log(model):
    return _SyncLog(model)


def test_deferral_lasts_until_backward_has_returned(sync_log, sgd, batches):
    wrapper = OptimWrapper(sgd, accumulative_counts=2)
    with wrapper.optim_context(sync_log):
        output = sync_log(batches[0][0])
    during = []
    output.register_hook(lambda _: during.append(sync_log.is_off))
    wrapper.update_params(output.mean())
    assert (during, sync_log.is_off) == ([True], False)
    with wrapper.optim_context(sync_log):
        assert not sync_log.is_off  # this one steps


def test_exception_in_the_context_ends_deferral_at_once(sync_log, sgd):
    wrapper = OptimWrapper(sgd, accumulative_counts=2)
    with pytest.raises(KeyError), wrapper.optim_context(sync_log):
        raise KeyError
    assert not sync_log.is_off


def test_exception_in_backward_ends_deferral(sync_log, sgd, batches):
    wrapper = OptimWrapper(sgd, accumulative_counts=2)
    with wrapper.optim_context(sync_log):
        output = sync_log(batches[0][0])

    def fail(_):
        raise KeyError

    output.register_hook(fail)
    with pytest.raises(KeyError):
        wrapper.backward(output.mean())
    assert not sync_log.is_off
    assert wrapper.inner_count == 0


def test_new_context_ends_a_stale_deferral(sync_log, sgd, batches):
    wrapper = OptimWrapper(sgd, accumulative_counts=2)
    for _ in range(2):  # _SyncLog refuses to be entered twice
        with wrapper.optim_context(sync_log):
            sync_log(batches[0][0])
    assert sync_log.is_off


def test_deferral_finds_a_wrapper_inside_the_model(sync_log, sgd):
    with OptimWrapper(sgd, accumulative_counts=2).optim_context(nn.Sequential(sync_log)):
        assert sync_log.is_off
