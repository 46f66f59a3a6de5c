import torch
import torch.distributed as dist

import mm_dist

OPERATIONS = {
    "sum": ([5, 9], torch.int64),
    "SUM": ([5.0, 9.0], torch.float32),
    "product": ([6, 20], torch.int32),
    "min": ([2.0, 4.0], torch.float64),
    "max": ([3, 5], torch.int64),
    "band": ([2 & 3, 4 & 5], torch.int64),
    "bor": ([2 | 3, 4 | 5], torch.int64),
    "bxor": ([2 ^ 3, 4 ^ 5], torch.int64),
    "Mean": ([2.5, 4.5], torch.float32),
}


def _expect_reductions(rank):
    mine = [2, 4] if rank == 0 else [3, 5]
    for op, (expected, dtype) in OPERATIONS.items():
        data = torch.tensor(mine, dtype=dtype)
        assert mm_dist.all_reduce(data, op) is None
        assert data.tolist() == expected, op
        assert data.dtype == dtype
    _expect_special_reductions(rank, mine)
    _expect_dict_reductions(rank)


def _expect_special_reductions(rank, mine):
    negative_integers = -torch.tensor(mine)
    mm_dist.all_reduce(negative_integers, "mean")
    assert negative_integers.tolist() == [-2, -4], "rounded toward zero"
    halves = torch.tensor(mine, dtype=torch.bfloat16)
    mm_dist.all_reduce(halves, "mean")
    assert halves.dtype == torch.bfloat16
    assert halves.tolist() == [2.5, 4.5]
    flags = torch.tensor([rank == 0, True, False])
    mm_dist.all_reduce(flags)
    assert flags.tolist() == [True, True, False]
    mm_dist.all_reduce(flags[:1].fill_(rank == 0), "min")
    assert flags.tolist() == [False, True, False]
    strided = torch.tensor([[1.0, 9.0], [2.0, 9.0]])[:, 0]
    mm_dist.all_reduce(strided)
    assert strided.tolist() == [2, 4]
    leaf = torch.ones(1, requires_grad=True)
    mm_dist.all_reduce(leaf)
    assert leaf.item() == 2
    mm_dist.all_reduce(torch.empty(0))
    scalar = torch.tensor(1.0 + rank)
    mm_dist.all_reduce(scalar)
    assert scalar.item() == 3


def _expect_dict_reductions(rank):
    loss, count = torch.tensor(1.0 + rank), torch.tensor([rank, 1])
    grid = torch.full((2, 2), float(rank))
    data = {"loss": loss, "count": count, "grid": grid}
    if rank:
        data = dict(reversed(data.items()))
    with _counted(dist, "all_reduce") as calls:
        mm_dist.all_reduce_dict(data, "sum")
    assert len(calls) == 1, "one collective for all dtypes"
    assert (loss.item(), count.tolist(), grid.tolist()) == (3, [1, 2], [[1, 1], [1, 1]])


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


def test_all_reduce_knows_every_operation(run_ranks):
    run_ranks(_expect_reductions, 2)


def _expect_copies(rank):
    values = [torch.tensor(float(rank)), torch.ones(2, 3)[:, 1] * rank, torch.empty(0, 2)]
    values += [torch.tensor([rank == 0, True]), torch.tensor(rank + 0.5, dtype=torch.bfloat16)]
    for value in values:
        gathered = mm_dist.all_gather(value)
        assert len(gathered) == 2
        assert torch.equal(gathered[rank], value)
        assert all(t.dtype == value.dtype and t.shape == value.shape for t in gathered)
        collected = mm_dist.gather(value, dst=1)
        assert len(collected) == (2 if rank == 1 else 0)
        received = value.clone()
        mm_dist.broadcast(received, src=1)
        assert torch.equal(received, gathered[1])
    assert mm_dist.all_gather(torch.tensor(rank))[1].item() == 1
    strided = torch.full((2, 2), float(rank)).T[0]
    mm_dist.broadcast(strided, src=1)
    assert strided.tolist() == [1, 1]
    assert len(set(mm_dist.all_gather_object(mm_dist.sync_random_seed()))) == 1


def test_tensors_are_copied_in_rank_order(run_ranks):
    run_ranks(_expect_copies, 2)


def _expect_objects(rank):
    mine = {"rank": rank, "text": "x" * (10_000 * rank), "tensor": torch.tensor([rank])}
    gathered = mm_dist.all_gather_object(mine)
    assert [item["rank"] for item in gathered] == [0, 1]
    assert [len(item["text"]) for item in gathered] == [0, 10_000]
    collected = mm_dist.gather_object(None if rank else mine, dst=1)
    assert (collected is None) == (rank == 0)
    if rank == 1:
        assert collected[0]["rank"] == 0
        assert collected[1] is None
    objects = ["only", {"on": 1}] if rank == 1 else [None, None]
    mm_dist.broadcast_object_list(objects, src=1)
    assert objects == ["only", {"on": 1}]
    assert mm_dist.get_dist_info() == (rank, 2)
    assert (mm_dist.get_local_rank(), mm_dist.get_local_size()) == (rank, 2)
    assert mm_dist.get_backend() == "gloo"
    assert mm_dist.is_main_process() == (rank == 0)
    assert mm_dist.master_only(lambda: "ran")() == ("ran" if rank == 0 else None)
    mm_dist.barrier()


def test_objects_are_copied_in_rank_order(run_ranks):
    run_ranks(_expect_objects, 2)


def _expect_subgroup(rank):
    group = dist.new_group([1])
    if rank == 0:
        return
    data = torch.tensor([float(rank)])
    mm_dist.all_reduce(data, "mean", group)
    mm_dist.broadcast(data, src=1, group=group)
    assert data.item() == 1
    assert mm_dist.get_dist_info(group) == (0, 1)
    assert mm_dist.is_main_process(group)
    assert mm_dist.all_gather_object(rank, group) == [1]
    assert mm_dist.gather_object(rank, dst=1, group=group) == [1]
    assert 0 <= mm_dist.sync_random_seed(group) < 2**31
    mm_dist.barrier(group)


def test_collectives_keep_to_a_group(run_ranks):
    run_ranks(_expect_subgroup, 2)


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
