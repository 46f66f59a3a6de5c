import pytest
import torch
import torch.distributed as dist

import mm_dist

# Values of all dtypes, operations, layouts and groups: test_collective_properties.


def _expect_reductions(rank):
    mine = [2, 4] if rank == 0 else [3, 5]
    for op, dtype, expected in (
        ("SUM", torch.float32, [5, 9]),
        ("Mean", torch.float32, [2.5, 4.5]),
        ("avg", torch.float64, [2.5, 4.5]),
        ("AVG", torch.int64, [2, 4]),
    ):
        data = torch.tensor(mine, dtype=dtype)
        assert mm_dist.all_reduce(data, op) is None
        assert data.tolist() == expected, op
        assert data.dtype == dtype
    flags = torch.tensor([rank == 0, True, False])
    mm_dist.all_reduce(flags[:1], "min")
    assert flags.tolist() == [False, True, False]
    leaf = torch.ones(1, requires_grad=True)
    mm_dist.all_reduce(leaf)
    assert leaf.item() == 2
    _expect_dict_reductions(rank)


def _expect_dict_reductions(rank):
    loss, count = torch.tensor(1.0 + rank), torch.tensor([rank, 1])
    grid = torch.full((2, 2), float(rank))
    data = {"loss": loss, "count": count, "grid": grid}
    if rank:
        data = dict(reversed(data.items()))
    with _counted(dist, "all_reduce") as calls:
        mm_dist.all_reduce_dict(data, "sum")
    assert len(calls) == 2, "one for each dtype"
    assert (loss.item(), count.tolist(), grid.tolist()) == (3, [1, 2], [[1, 1], [1, 1]])
    flag, leaf = torch.tensor(rank == 1), torch.full((2,), rank + 1.0, requires_grad=True)
    nested = {"heads": [{"flag": flag}, (leaf, torch.tensor(2**60 + rank))], "none": {}}
    with _counted(dist, "all_reduce") as calls:
        mm_dist.all_reduce_dict(nested)
        mm_dist.all_reduce_dict({})
        mm_dist.all_reduce_dict({"map": torch.zeros(50, 50), "count": torch.tensor(3)}, "max")
        mm_dist.all_reduce_dict({"map": torch.zeros(50, 50), "count": torch.tensor(3)}, "max")
    assert len(calls) == 7, "one for each dtype"
    assert flag.item()
    assert (leaf.tolist(), leaf.grad_fn) == ([3, 3], None)
    assert nested["heads"][1][1].item() == 2**61 + 1


def _expect_backward_to_notice(rank):
    """What a backward pass needs must not be overwritten behind its back."""
    calls = [
        mm_dist.all_reduce,
        lambda data: mm_dist.all_reduce(data.detach()),
        lambda data: mm_dist.all_reduce(data, "mean"),
        lambda data: mm_dist.all_reduce_params([data]),
        lambda data: mm_dist.broadcast(data, src=1),
        lambda data: mm_dist.broadcast([data], src=1),
    ]
    for number, call in enumerate(calls):
        weight = torch.ones(2, requires_grad=True)
        needed = weight.exp()
        call(needed)
        if number >= len(calls) - 2 and rank == 1:
            needed.sum().backward()  # the sender's data is as it was
            continue
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            needed.sum().backward()
    loss = torch.zeros(2, requires_grad=True)
    needed = loss.exp()
    logged = {"heads": [(needed, torch.ones(1))], "loss": needed, "leaf": loss}
    mm_dist.all_reduce_dict(logged)
    assert [each.tolist() for each in logged["heads"][0]] == [[2, 2], [2]]
    assert (logged["loss"].tolist(), logged["loss"].requires_grad) == ([2, 2], False)
    assert logged["leaf"] is loss
    needed.sum().backward()
    assert loss.grad.tolist() == needed.tolist() == [1, 1]
    with torch.inference_mode():
        data = torch.ones(2)
    mm_dist.all_reduce(data)
    assert data.tolist() == [2, 2]


class _counted:  # noqa: N801 (reads as a function)
    def __init__(self, owner, name):
        self.owner, self.name, self.real = owner, name, getattr(owner, name)

    def __enter__(self):
        calls = []

        def call(*args, **kwargs):
            calls.append(args)
            return self.real(*args, **kwargs)

        setattr(self.owner, self.name, call)
        return calls

    def __exit__(self, *_):
        setattr(self.owner, self.name, self.real)


def _expect_nested_copies(rank):
    own = {"scores": torch.full((rank, 2), 0.5), "ids": [torch.tensor([rank], dtype=torch.int16)]}
    with _counted(dist, "all_gather") as calls:
        gathered = mm_dist.all_gather(own)
    # Two exchange the shapes.
    assert len(calls) == 3, "all of it travels together"
    assert [len(each["scores"]) for each in gathered] == [0, 1]
    assert [each["ids"][0].item() for each in gathered] == [0, 1]
    assert gathered[1]["ids"][0].dtype == torch.int16
    collected = mm_dist.gather(torch.ones(2 - rank, 3), dst=1)
    assert [tuple(each.shape) for each in collected] == ([(2, 3), (1, 3)] if rank else [])
    state = {"weight": torch.full((2,), float(rank)), "step": torch.tensor(rank)}
    mm_dist.broadcast(state, src=1)
    assert (state["weight"].tolist(), state["step"].item()) == ([1, 1], 1)


def _expect_objects(rank):
    assert mm_dist.get_dist_info() == (rank, 2)
    assert (mm_dist.get_local_rank(), mm_dist.get_local_size()) == (rank, 2)
    assert mm_dist.get_backend() == "gloo"
    assert mm_dist.is_main_process() == (rank == 0)
    assert mm_dist.master_only(lambda: "ran")() == ("ran" if rank == 0 else None)
    assert len(set(mm_dist.all_gather_object(mm_dist.sync_random_seed()))) == 1
    mm_dist.barrier()
    # Of the batch that a sample is a view of, no more than the sample travels.
    sample = torch.arange(1_000_000.0).reshape(1000, 1000)[rank]
    with _counted(dist, "all_gather") as calls:
        samples = mm_dist.all_gather_object({"sample": sample})
    assert sum(tensor.numel() for tensor in calls[1][0]) < 2 * 6000
    assert [each["sample"][0].item() for each in samples] == [0, 1000]
    received = samples[1 - rank]["sample"]
    storage = getattr(received, "untyped_storage", received.storage)()  # torch < 2.0
    assert storage.nbytes() == 4000


def _expect_params(rank):
    params = [torch.full((2,), rank + 1.0), torch.tensor([rank]), torch.full((3,), float(rank))]
    params += [torch.nn.Parameter(torch.full((2**18,), float(rank))) for _ in range(3)]
    for options, num_calls in (
        ({}, 2),
        ({"bucket_size_mb": 1}, 5),
        ({"coalesce": False}, 6),
        ({"bucket_size_mb": 2}, 3),
    ):
        own = [param.detach().clone() for param in params]
        with _counted(dist, "all_reduce") as calls:
            mm_dist.all_reduce_params(iter([*own, own[0]]), op="sum", **options)
        assert len(calls) == num_calls, options
        assert [tensor.reshape(-1)[0].item() for tensor in own] == [3, 1, 1, 1, 1, 1]
    mm_dist.all_reduce_params(params, op="max")
    assert params[-1].detach().unique().tolist() == [1]


def _expect_all(rank):
    _expect_reductions(rank)
    _expect_nested_copies(rank)
    _expect_objects(rank)
    _expect_params(rank)
    _expect_backward_to_notice(rank)


def test_collectives_of_two_ranks(run_ranks):
    run_ranks(_expect_all, 2)


def _expect_subgroup(rank):
    group = dist.new_group([1, 3])
    if rank not in (1, 3):
        return
    data = torch.tensor([float(rank)])
    mm_dist.all_reduce(data, "mean", group)
    assert data.item() == 2
    # Sources and receivers are counted among all ranks.
    mm_dist.broadcast(data.fill_(rank), src=3, group=group)
    assert data.item() == 3
    assert mm_dist.get_dist_info(group) == (rank // 3, 2)
    assert mm_dist.is_main_process(group) == (rank == 1)
    assert mm_dist.all_gather_object(rank, group) == [1, 3]
    assert mm_dist.gather_object(rank, dst=3, group=group) == ([1, 3] if rank == 3 else None)
    gathered = mm_dist.gather(torch.tensor(rank), dst=3, group=group)
    assert [tensor.item() for tensor in gathered] == ([1, 3] if rank == 3 else [])
    objects = [rank]
    mm_dist.broadcast_object_list(objects, src=3, group=group)
    assert objects == [3]
    total = {"rank": torch.tensor(rank)}
    mm_dist.all_reduce_dict(total, "sum", group)
    assert total["rank"].item() == 4
    assert len(set(mm_dist.all_gather_object(mm_dist.sync_random_seed(group), group))) == 1
    mm_dist.barrier(group)


def test_collectives_keep_to_a_group(run_ranks):
    run_ranks(_expect_subgroup, 4)


def test_object_collectives_need_no_numpy(run_script, tmp_path):
    result = run_script(
        "import sys\n"
        "sys.modules['numpy'] = None\n"
        "import torch.distributed as dist\n"
        "import mm_dist\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/s', rank=0, "
        "world_size=1)\n"
        "print(mm_dist.all_gather_object({'a': 1}), mm_dist.collect_results([1], 1))\n"
        "dist.destroy_process_group()\n"
    )
    assert result.stdout == "[{'a': 1}] [1]\n", result.stderr


@pytest.mark.usefixtures("group_of_one")
def test_tensors_that_are_sharded_over_a_mesh_are_refused():
    mesh = pytest.importorskip("torch.distributed.device_mesh").init_device_mesh("cpu", (1,))
    tensor = pytest.importorskip("torch.distributed._tensor")  # its name before torch 2.5, too
    sharded = tensor.DTensor.from_local(torch.ones(2), mesh, [tensor.Shard(0)])
    for call, data in (
        (mm_dist.all_reduce, sharded),
        (mm_dist.all_reduce_dict, {"norm": sharded}),
        (mm_dist.all_reduce_params, [torch.nn.Parameter(sharded)]),
        (mm_dist.all_gather, sharded),
    ):
        with pytest.raises(mm_dist.ArgumentTypeError, match=r"device mesh; call full_tensor\(\)"):
            call(data)
