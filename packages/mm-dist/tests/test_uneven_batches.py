"""Ranks with different numbers of batches, under torch's own ``join``."""

import torch
from torch import nn

from mm_dist import MMDistributedDataParallel, all_gather


def _train(rank):
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    start = model.weight.detach().clone()
    wrapper = MMDistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)
    with wrapper.join():
        for batch in range(5 - rank):
            wrapper(torch.full((1, 2), float(rank + batch))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    # Both have come here: nobody waits for a batch that the other does not have. The gradients are
    # the inputs, 0 + 1 + 2 + 3 + 4 and 1 + 2 + 3 + 4, and each step takes half of their sum.
    for weight in all_gather(model.weight.detach()):
        torch.testing.assert_close(weight, start - 0.1 * 20 / 2)


def test_rank_with_fewer_batches_does_not_stop_the_other(run_ranks):
    run_ranks(_train, 2)
