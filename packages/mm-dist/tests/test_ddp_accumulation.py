"""Gradients of accumulated micro-batches: one exchange per optimizer step, and the right mean."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from mm_dist import MMDistributedDataParallel, all_gather

_WINDOWS = (1, 2, 3, 4, 3)  # micro-batches per optimizer step; 13 are no multiple of any


class Net(nn.Module):
    def __init__(self, *, is_checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 4)
        self.shared = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)
        self.is_checkpointed = is_checkpointed

    def forward(self, inputs):
        values = self.body(inputs)
        for _ in range(2):
            if self.is_checkpointed:
                values = checkpoint(self.shared, values, use_reentrant=True)
            else:
                values = self.shared(values)
        return self.head(values.tanh()).mean()


def _micro_batch(index, rank):
    generator = torch.Generator().manual_seed(10 * index + rank)
    return torch.randn(2, 3, generator=generator)


def _reference_gradients(indices):
    net = Net()
    for index in indices:
        net(torch.cat([_micro_batch(index, rank) for rank in (0, 1)])).backward()
    return [parameter.grad for parameter in net.parameters()]


def _count_exchanges(model, counts):
    def count_and_average(state, bucket):  # noqa: ARG001 (torch's signature)
        counts.append(bucket.index())
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model.register_comm_hook(None, count_and_average)


def _expect_windows(rank, model, windows):
    """Return how many exchanges each optimizer step took; its gradients have to be right."""
    exchanges = []
    counts = []
    _count_exchanges(model, counts)
    begin = 0
    for window in windows:
        indices = range(begin, begin + window)
        for index in indices:
            is_last = index == indices[-1]
            with contextlib.nullcontext() if is_last else model.no_sync():
                model(_micro_batch(index, rank)).backward()
        found = [parameter.grad for parameter in model.module.parameters()]
        for gradient, expected in zip(found, _reference_gradients(indices), strict=True):
            torch.testing.assert_close(gradient, expected)
        exchanges.append(len(counts))
        counts.clear()
        model.zero_grad()
        begin += window
    return exchanges


def _expect_accumulation(rank):
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model = MMDistributedDataParallel(Net(), **options)
        assert _expect_windows(rank, model, _WINDOWS) == [1] * 5, options

    # torch learns the static graph in the first steps, and crashes if one of them accumulates.
    for is_checkpointed, is_view in ((False, False), (False, True), (True, False)):
        for first in (1, 3):
            net = Net(is_checkpointed=is_checkpointed)
            model = MMDistributedDataParallel(
                net, static_graph=True, gradient_as_bucket_view=is_view
            )
            _expect_windows(rank, model, (first, 3, 4, 1, 2))


def _expect_equal_parameters(rank):
    torch.manual_seed(rank)  # another model on each rank, until it is wrapped
    model = MMDistributedDataParallel(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(3):
        model(_micro_batch(index, rank)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for parameter in model.parameters():
        first, second = all_gather(parameter)
        assert torch.equal(first, second)


def _expect_accumulation_and_equal_parameters(rank):
    _expect_accumulation(rank)
    _expect_equal_parameters(rank)


def test_accumulated_gradients_are_those_of_the_big_batch(run_ranks):
    run_ranks(_expect_accumulation_and_equal_parameters, 2)
