"""Compiled models in wrappers of several processes: the same training as uncompiled ones."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from toy import needs_compile
from wrapped import Net, Watch, train

from mm_compile import compile_model
from mm_compile._torch import torch_version

pytestmark = needs_compile

WAYS = [None, "auto"]


def data_parallel(rank, folder):
    eager = DistributedDataParallel(Net())
    expected = train(eager, rank, no_sync=eager.no_sync)
    for regions in WAYS:
        model, backend = Net(), Watch()
        handle = compile_model(model, {"backend": backend, "regions": regions})
        wrapper = DistributedDataParallel(model)
        losses = train(wrapper, rank, no_sync=wrapper.no_sync)
        torch.testing.assert_close(losses, expected)
        torch.testing.assert_close(wrapper.state_dict(), eager.state_dict())
        assert all(region.is_compiled for region in handle.regions)
        num_regions = 1 if regions is None else 3
        assert backend.count("backward") == 3 * num_regions
        expect_checkpoints_pass(rank, wrapper, folder / f"{regions}.pt")
    dist.barrier()


def expect_checkpoints_pass(rank, wrapper, path):
    """Written compiled and read plain, then written plain and read compiled."""
    dist.barrier()
    if rank == 0:
        torch.save(wrapper.module.state_dict(), path)
    dist.barrier()
    plain = DistributedDataParallel(Net())
    plain.module.load_state_dict(torch.load(path, weights_only=True))
    inputs = torch.randn(5, 4)
    torch.testing.assert_close(plain.eval()(inputs), wrapper.eval()(inputs))
    train(plain.train(), rank)
    wrapper.load_state_dict(plain.state_dict())
    torch.testing.assert_close(wrapper(inputs), plain.eval()(inputs))


def test_data_parallel_training_is_the_same(run_ranks, tmp_path):
    run_ranks(data_parallel, 2, tmp_path)


def shard(model, *, each):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - not in every torch

    for block in model.blocks if each else ():
        fully_shard(block)
    return fully_shard(model)


def whole_state(model):
    return {name: value.full_tensor() for name, value in model.state_dict().items()}


def sharded(rank, folder):
    for regions, each in ((None, False), (None, True), ("auto", True)):
        eager = shard(Net(), each=each)
        expected = train(eager, rank, no_sync=partial(accumulating, eager))
        model, backend = Net(), Watch()
        handle = compile_model(model, {"backend": backend, "regions": regions})
        shard(model, each=each)
        losses = train(model, rank, no_sync=partial(accumulating, model))
        torch.testing.assert_close(losses, expected)
        torch.testing.assert_close(whole_state(model), whole_state(eager))
        assert all(region.is_compiled for region in handle.regions)
        # Where blocks gather their own parameters, each is a graph also of a whole model.
        assert backend.count("backward") == 3 * (3 if each else 1)
    expect_sharded_checkpoints_pass(rank, model, folder / "model.pt")
    dist.barrier()


@contextmanager
def accumulating(model):
    model.set_requires_gradient_sync(requires_gradient_sync=False)
    yield
    model.set_requires_gradient_sync(requires_gradient_sync=True)


def expect_sharded_checkpoints_pass(rank, model, path):
    """Written compiled and read plain, then written plain and read compiled; one rank has files."""
    from torch.distributed.checkpoint.state_dict import (  # noqa: PLC0415 - not in every torch
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )

    def save(sharded):
        state = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
        if rank == 0:
            torch.save(state, path)

    def load(sharded):
        state = torch.load(path, weights_only=True) if rank == 0 else {}
        whole = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(sharded, state, options=whole)

    save(model)
    if rank == 0:
        Net().load_state_dict(torch.load(path, weights_only=True))
    plain = shard(Net(), each=True)
    load(plain)
    torch.testing.assert_close(whole_state(plain), whole_state(model))
    train(plain, rank)
    save(plain)
    load(model)
    inputs = torch.randn(5, 4)
    torch.testing.assert_close(model.eval()(inputs), plain.eval()(inputs))


@pytest.mark.skipif(torch_version() < (2, 8), reason="fully_shard is right on the CPU since 2.8")
def test_sharded_training_is_the_same(run_ranks, tmp_path):
    run_ranks(sharded, 2, tmp_path)
