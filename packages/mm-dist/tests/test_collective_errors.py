"""What one rank does wrong reaches all of them, and the next collective works again."""

import os
import sys

import pytest
import torch
import torch.distributed as dist

import mm_dist
from mm_dist import CollectiveError, ConfigError
from mm_dist._collectives import _state

LOSS = {"loss": 1.0}
SEVERAL = {f"loss{n}": float(n) for n in range(20)}
# Per rank what it passes, and what the error has to say.
DIFFERENT_DICTS = {
    "lacks a key": (
        [LOSS, LOSS, {}],
        "differs between ranks: ranks 0-1: data['loss'] float32 (); rank 2: nothing.",
    ),
    "has one more": (
        [LOSS, {**LOSS, "aux": 2.0}, LOSS],
        "ranks 0, 2: nothing; rank 1: data['aux'] float32 ()",
    ),
    "has another kind": (
        [LOSS, {"loss": 1}, LOSS],
        "ranks 0, 2: data['loss'] float32 (); rank 1: data['loss'] int64 ()",
    ),
    "has another shape": (
        [{"x": [1.0]}, {"x": [[1.0, 2.0]]}, {"x": [1.0]}],
        "ranks 0, 2: data['x'] float32 (1,); rank 1: data['x'] float32 (1, 2)",
    ),
    "has other names": (
        [SEVERAL, SEVERAL, {f"other{n}": 1.0 for n in range(20)}],
        ", .... Call the same collective on all ranks, with the same names, shapes",
    ),
}


def expect_error(message, function, *args, **kwargs):
    with pytest.raises(CollectiveError) as caught:
        function(*args, **kwargs)
    assert message in str(caught.value)
    # Nothing was left behind in the connections.
    total = torch.ones(1)
    mm_dist.all_reduce(total)
    assert total.item() == dist.get_world_size()


def _expect_dict_errors(rank):
    for op in ("sum", "min", "max", "product", "mean"):
        for dicts, message in DIFFERENT_DICTS.values():
            data = {key: torch.tensor(value) for key, value in dicts[rank].items()}
            expect_error(message, mm_dist.all_reduce_dict, data, op)
    nested = {"head": {"loss": torch.ones(1), "aux": [torch.ones(min(rank, 1) + 1)]}}
    message = "rank 0: data['head']['aux'][0] float32 (1,); ranks 1-2: data['head']['aux'][0] float"
    expect_error(message, mm_dist.all_reduce_dict, nested)
    for other in ("max", "min", "mean"):
        op = ["sum", other, "sum"][rank]
        message = f"ranks 0, 2: all_reduce_dict(op='sum'); rank 1: all_reduce_dict(op={other!r})"
        expect_error(message, mm_dist.all_reduce_dict, {"loss": torch.ones(1)}, op)


class FailsLate:
    """Cannot be pickled."""

    def __reduce__(self):
        raise RuntimeError("no more")


def _expect_object_errors(rank):
    local = [lambda: 0] if rank == 1 else "fine"
    message = "failed on rank 1: "
    if rank == 1:
        error = "PicklingError" if sys.version_info >= (3, 14) else "AttributeError"
        message = f"{message}{error}: Can't "
    expect_error(message, mm_dist.all_gather_object, local)
    expect_error(message, mm_dist.gather_object, local, dst=2)
    expect_error(message, mm_dist.broadcast_object_list, [local], src=1)
    late = [bytes(1000), FailsLate()] if rank > 0 else "fine"
    for function in (mm_dist.all_gather_object, mm_dist.gather_object):
        expect_error("failed on rank 1: RuntimeError: no more", function, late)
    with pytest.raises(CollectiveError) as caught:
        mm_dist.all_gather_object(FailsLate() if rank == 1 else 0)
    assert isinstance(caught.value.__cause__, RuntimeError) == (rank == 1)


def _expect_copy_errors(rank):
    rows = {"rows": torch.ones(rank + 1, 2)}
    message = "rank 1: data['rows'] float32 (2, 2); rank 2: data['rows'] float32 (3, 2)"
    expect_error(message, mm_dist.broadcast, rows)
    mixed = torch.ones(2, dtype=torch.float64 if rank == 2 else torch.float32)
    expect_error("ranks 0-1: data float32; rank 2: data float64", mm_dist.all_gather, mixed)
    expect_error("rank 2: data float64", mm_dist.gather, mixed, 1)
    kinds = torch.ones(2) if rank else {"rows": torch.ones(2)}
    message = "rank 0: data['rows'] float32; ranks 1-2: data float32"
    expect_error(message, mm_dist.all_gather, kinds)


def _expect_checked_calls(rank):
    group = dist.new_group([0, 1, 2])
    data = torch.ones(3 if rank == 1 else 2)
    expected = (
        "{} differs between ranks: ranks 0, 2: data float32 (2,); rank 1: data float32 (3,)".format
    )
    expect_error(expected("all_reduce(op='sum')"), mm_dist.all_reduce, data, group=group)
    assert [len(each) for each in mm_dist.all_gather(data, group)] == [2, 3, 2]
    calls = [mm_dist.all_gather, mm_dist.all_gather, mm_dist.gather]
    message = "ranks 0-1: all_gather(); rank 2: gather(dst=0)"
    expect_error(message, calls[rank], data, group=group)
    expect_error(expected("broadcast(src=1)"), mm_dist.broadcast, data, 1, group)
    if rank == 0:
        expect_error("rank 0: broadcast(src=0); ranks 1-2", mm_dist.broadcast, data, 0, group)
    else:
        message = "ranks 1-2: all_reduce(op='max')."
        expect_error(message, mm_dist.all_reduce, torch.ones(2), "max", group)
    big = {"map": torch.zeros(5000)} if rank == 1 else {"loss": torch.ones(1)}
    expect_error("rank 1: data['map'] float32 (5000,)", mm_dist.all_reduce_dict, big, "sum", group)
    for _ in range(2):
        same = torch.tensor([float(rank)])
        mm_dist.all_reduce(same, "max", group)
        mm_dist.all_reduce_dict({"same": same}, "sum", group)
        assert same.item() == 6
        assert [t.item() for t in mm_dist.all_gather(same, group)] == [6, 6, 6]


def _expect_group_errors(rank):
    group = dist.new_group([0, 2])
    if rank == 1:
        with pytest.raises(ConfigError, match="Rank 1 is not in the group"):
            mm_dist.all_reduce(torch.ones(1), group=group)
        with pytest.raises(ConfigError, match="Rank 1 is not in the group"):
            mm_dist.all_gather_object(1, group)
        return
    message = r"=1 is not in the group, whose ranks are \[0, 2\]"
    with pytest.raises(ConfigError, match="dst" + message):
        mm_dist.gather(torch.ones(1), 1, group)
    with pytest.raises(ConfigError, match="dst" + message):
        mm_dist.gather_object("x", 1, group)
    with pytest.raises(ConfigError, match="src" + message):
        mm_dist.broadcast(torch.ones(1), 1, group)
    with pytest.raises(ConfigError, match="src" + message):
        mm_dist.broadcast_object_list(["x"], 1, group)


def _expect_result_errors(rank):
    expect_error("size=[3, 4, 4]", mm_dist.collect_results, [0, 1], 4 if rank else 3)
    expect_error("no more", mm_dist.collect_results, [0, FailsLate() if rank == 1 else 0], 6)


def _expect_errors(rank):
    os.environ["MM_DIST_DEBUG"] = "1"  # the ranks compare every call
    _expect_dict_errors(rank)
    _expect_copy_errors(rank)
    _expect_checked_calls(rank)
    _expect_group_errors(rank)
    _expect_object_errors(rank)
    _expect_result_errors(rank)


def test_a_rank_outside_a_large_group_is_told_in_few_words():
    state = _state.GroupState(tuple(range(0, 4096, 2)), index=0, is_checked=False)
    with pytest.raises(ConfigError, match="dst=1 is not in the group, whose ranks are 0 to 4094;"):
        _state.check_member("dst", 1, state)
    assert _state.check_member("dst", 4094, state) == 2047


def test_errors_of_one_rank_are_raised_on_all(run_ranks):
    run_ranks(_expect_errors, 3)
