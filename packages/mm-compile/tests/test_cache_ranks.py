import warnings

import torch
import torch.distributed as dist
from test_cache_warm import Product, needs_inductor
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toy import needs_torch_2_4

from mm_compile import compile_model

pytestmark = [needs_inductor, needs_torch_2_4]


def train(directory):
    """Take two steps in a data-parallel wrapper, and return hits and misses."""
    from torch._dynamo.utils import counters  # noqa: PLC0415 - imports dynamo

    counters.clear()
    torch._dynamo.reset()
    wrapped = DistributedDataParallel(nn.Sequential(Product(), Product()))
    handle = compile_model(wrapped, {"cache": directory})
    for _ in range(2):
        wrapped(torch.ones(3, 4)).sum().backward()
    handle.undo()
    return [counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss")]


def _share_a_cache(_rank, folder):
    warnings.simplefilter("ignore")
    assert train(folder / "cache") in ([0, 2], [1, 1], [2, 0])
    dist.barrier()
    assert train(folder / "cache") == [2, 0]


def test_ranks_share_a_cache(run_ranks, tmp_path):
    run_ranks(_share_a_cache, 2, tmp_path)
