import os
import warnings

import pytest
import torch
import torch.distributed as dist
from test_cache_warm import IS_NEW, SUPPORT, Product
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mm_compile._cache._code_cache
from mm_compile import compile_model
from mm_compile._cache._code_cache import CodeCache
from mm_compile._cache._inductor import compiles_backward_at_once

collectives = pytest.importorskip("torch.distributed._functional_collectives")
pytestmark = pytest.mark.skipif(
    not (SUPPORT.ok and IS_NEW), reason=str(SUPPORT.reason or "old torch")
)


def gather(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def train(directory, size):
    """Take two steps in a data-parallel wrapper, and tell hits and misses."""
    from torch._dynamo.utils import counters  # noqa: PLC0415 - imports dynamo

    counters.clear()
    torch._dynamo.reset()
    model = nn.Sequential(Product(size), Product(size))
    wrapped = DistributedDataParallel(model) if size == 4 else model
    handle = compile_model(wrapped, {"cache": directory})
    for _ in range(2):
        wrapped(torch.ones(3, size)).sum().backward()
    handle.undo()
    return [counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss")]


def fail_once(directory, flag):
    """Compile one graph on all ranks, where the first attempt of all fails."""
    cache = CodeCache(directory, {})
    graph_module = torch.fx.symbolic_trace(nn.Linear(3, 3))

    def compile_graph():
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return "compiled"
        raise RuntimeError("no compiler")

    try:
        return cache.compile(graph_module, [torch.ones(1, 3)], compile_graph)
    except RuntimeError as error:
        return str(error)
    finally:
        cache.close()


def _expect_one_to_compile(rank, folder):
    warnings.simplefilter("ignore")
    hits, misses = zip(*gather(train(folder / "same", size=4)), strict=True)
    # Each graph is compiled by one rank and loaded by the other.
    assert (sum(misses), sum(hits)) == (2, 2)
    if compiles_backward_at_once():
        assert sorted(misses) == [0, 2]
    # Elsewhere backward has a turn of its own, and whoever comes first to that may be the other.

    # Ranks of different graphs do not wait for each other, and compile each its own.
    assert gather(train(folder / "different", size=5 + rank)) == [[0, 2], [0, 2]]

    # The rank that waits for one which fails compiles itself.
    assert sorted(gather(fail_once(folder / "failing", folder / "flag"))) == [
        "compiled",
        "no compiler",
    ]


def test_one_rank_of_a_machine_compiles_and_the_others_load(run_ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run_ranks(_expect_one_to_compile, 2, tmp_path)


def test_a_graph_that_communicates_is_left_to_torch(tmp_path, monkeypatch):
    """Ranks may compile it together: none may wait for its turn, and none load alone."""
    graph = torch.fx.Graph()
    graph.output(graph.call_function(collectives.all_reduce, (graph.placeholder("x"), "sum", [0])))
    talks = torch.fx.GraphModule(nn.Module(), graph)
    silent = torch.fx.symbolic_trace(nn.Linear(2, 2))

    def refuse(_subject):
        raise AssertionError("it waits for its turn")

    monkeypatch.setattr(mm_compile._cache._code_cache, "turn", refuse)
    cache = CodeCache(tmp_path / "cache", {})
    assert cache.compile(talks, [torch.ones(2)], lambda: "compiled") == "compiled"
    assert not (tmp_path / "cache").exists()
    with pytest.raises(AssertionError, match="waits"):
        cache.compile(silent, [torch.ones(2)], lambda: "compiled")

    config = torch._functorch.config
    if hasattr(config, "_sync_decision_cross_ranks"):
        with config.patch(_sync_decision_cross_ranks=True):
            assert cache.compile(silent, [torch.ones(2)], lambda: "compiled") == "compiled"
    cache.close()
