"""Random calls on groups of one to four real ranks, against plain Python."""

import random
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from collective_reference import (
    DTYPES,
    FLOATS,
    SHAPES,
    assert_same,
    expect_reduced,
    operations_of,
    random_layout,
    random_tensor,
)

import mm_dist

SEED = 20261121
NUM_CASES = 25


class Case:
    """One random call: what all ranks pass can be computed on each of them."""

    def __init__(self, number, members, group):
        self.number, self.members, self.group = number, members, group
        self.shared = random.Random(f"{SEED}-{number}")  # noqa: S311 (draws the same on all ranks)
        self.world_size = len(members)
        self.index = mm_dist.get_rank(group)

    def of_rank(self, index):
        return random.Random(f"{SEED}-{self.number}-{index}")  # noqa: S311

    def all_ranks(self, make):
        """Return what ``make(generator)`` gives on every rank, and an own copy of this rank's."""
        made = [make(self.of_rank(index)) for index in range(self.world_size)]
        return made, make(self.of_rank(self.index))


def check_all_reduce(case):
    dtype, shape = case.shared.choice(DTYPES), case.shared.choice(SHAPES)
    op = case.shared.choice(operations_of(dtype))
    every, own = case.all_ranks(lambda rng: random_tensor(rng, dtype, shape))
    own = random_layout(case.of_rank(case.index), own)
    assert mm_dist.all_reduce(own, op.upper(), case.group) is None
    assert_same(own, expect_reduced(every, op))


def nested_tensors(case, dtypes, shape=None):
    """Return a function that fills a random structure, the same for all ranks."""
    names = random.Random(case.shared.random())  # noqa: S311
    keys = {f"key{n}": names.choice(["plain", "dict", "list", "tuple"]) for n in range(4)}
    kinds = {key: [names.choice(dtypes) for _ in range(2)] for key in keys}
    shapes = {key: shape or names.choice(SHAPES) for key in keys}

    def fill(rng):
        order = rng.sample(list(keys), len(keys))
        made = {}
        for key in sorted(keys):
            pair = [random_tensor(rng, dtype, shapes[key]) for dtype in kinds[key]]
            structures = {"plain": pair[0], "dict": {"b": pair[0], 1: pair[1]}, "list": pair}
            made[key] = structures.get(keys[key], tuple(pair))
        return {key: made[key] for key in order}

    return fill


def check_all_reduce_dict(case):
    op = case.shared.choice(["sum", "mean", "min", "max", "product", "bor", "bxor"])
    dtypes = [dtype for dtype in DTYPES if op in operations_of(dtype)]
    # Few elements travel with a tag, many without, and alike ones in their own dtype.
    shape = case.shared.choice([None, None, (3, 70)])
    chosen = dtypes if case.shared.random() < 0.7 else [case.shared.choice(dtypes)]
    every, own = case.all_ranks(nested_tensors(case, chosen, shape))
    mm_dist.all_reduce_dict(own, op, case.group)
    for key in own:
        flat = [list(leaves(made[key])) for made in every]
        for number, tensor in enumerate(leaves(own[key])):
            assert_same(tensor, expect_reduced([row[number] for row in flat], op))


def leaves(data):
    if isinstance(data, torch.Tensor):
        yield data
    else:
        for value in data.values() if isinstance(data, dict) else data:
            yield from leaves(value)


def check_all_reduce_params(case):
    op = case.shared.choice(["sum", "mean", "max"])
    kinds = [(case.shared.choice(FLOATS), case.shared.choice(SHAPES)) for _ in range(5)]
    every, own = case.all_ranks(lambda rng: [random_tensor(rng, *kind) for kind in kinds])
    options = {
        "coalesce": case.shared.random() < 0.7,
        "bucket_size_mb": case.shared.choice([-1, 1]),
    }
    mm_dist.all_reduce_params((tensor for tensor in own), op=op, group=case.group, **options)
    for number, tensor in enumerate(own):
        assert_same(tensor, expect_reduced([made[number] for made in every], op))


def tensors_to_copy(case):
    """Return a function that makes a rank's data, and whether the shapes may differ."""
    dtype, shape = case.shared.choice(DTYPES), case.shared.choice(SHAPES)
    kind = case.shared.choice(["tensor", "nested", "rows", "nested rows"])
    if kind == "tensor":
        return lambda rng: random_tensor(rng, dtype, shape), False
    if kind == "nested":
        return nested_tensors(case, DTYPES), False
    make_rows = lambda rng: random_tensor(rng, dtype, (rng.randint(0, 3), 2))  # noqa: E731
    return make_rows if kind == "rows" else (lambda rng: {"rows": make_rows(rng)}), True


def check_all_gather(case):
    make, _ = tensors_to_copy(case)
    every, own = case.all_ranks(make)
    own = random_layout(case.of_rank(case.index), own) if isinstance(own, torch.Tensor) else own
    gathered = mm_dist.all_gather(own, case.group)
    assert_same(in_order(gathered), in_order(every))


def check_gather(case):
    make, _ = tensors_to_copy(case)
    every, own = case.all_ranks(make)
    dst = case.shared.randrange(case.world_size)
    gathered = mm_dist.gather(own, case.members[dst], case.group)
    assert_same(in_order(gathered), in_order(every) if case.index == dst else [])


def check_broadcast(case):
    make, uneven = tensors_to_copy(case)
    every, own = case.all_ranks(make)
    src = case.shared.randrange(case.world_size)
    if not uneven:
        mm_dist.broadcast(own, case.members[src], case.group)
        assert_same(in_order([own]), in_order([every[src]]))


def in_order(structures):
    """Sort keys, whose order may differ between ranks."""
    return [dict(sorted(s.items())) if isinstance(s, dict) else s for s in structures]


def random_object(rng, depth=2):
    kind = rng.choice(["none", "int", "text", "bytes", "tensor", "list", "dict"])
    if kind == "tensor":
        tensor = random_tensor(rng, rng.choice(DTYPES), rng.choice(SHAPES))
        return random_layout(rng, tensor)
    if kind in ("list", "dict") and depth > 0:
        items = [random_object(rng, depth - 1) for _ in range(rng.randint(0, 3))]
        return items if kind == "list" else dict(enumerate(items))
    size = rng.choice([0, 5, 2000])
    return {"int": size, "text": "é" * size, "bytes": rng.randbytes(size)}.get(kind)


def check_objects(case):
    every, own = case.all_ranks(random_object)
    root = case.shared.randrange(case.world_size)
    assert_same(mm_dist.all_gather_object(own, case.group), every)
    gathered = mm_dist.gather_object(own, case.members[root], case.group)
    assert_same(gathered, every if case.index == root else None)
    objects = [own, case.index]
    mm_dist.broadcast_object_list(objects, case.members[root], case.group)
    assert_same(objects, [every[root], root])


def check_results(case):
    if case.group is not None:
        return
    size = case.shared.randint(0, 12)
    dataset = [random_object(case.of_rank(f"item-{n}")) for n in range(size)]
    mine = dataset[case.index :: case.world_size]
    if size and len(mine) < -(-size // case.world_size):
        mine.append(dataset[0])  # as a sampler pads
    collected = mm_dist.collect_results(mine, size)
    assert_same(collected, dataset if case.index == 0 else None)


CHECKS = [
    check_all_reduce,
    check_all_reduce_dict,
    check_all_reduce_params,
    check_all_gather,
    check_gather,
    check_broadcast,
    check_objects,
    check_results,
]


@contextmanager
def named(number, members, check):
    try:
        yield
    except Exception as error:
        message = f"seed {SEED}, case {number}, ranks {members}: {check.__name__}"
        raise AssertionError(message) from error


def _run_cases(rank, world_size):
    groups = [(tuple(range(world_size)), None)]
    if world_size > 2:
        some = (0, world_size - 1)
        groups.append((some, dist.new_group(some)))
    for number in range(NUM_CASES * len(CHECKS)):
        members, group = groups[number // len(CHECKS) % len(groups)]
        check = CHECKS[number % len(CHECKS)]
        if rank in members:
            with named(number, members, check):
                check(Case(number, members, group))


@pytest.mark.parametrize("world_size", [2, 3])
def test_random_calls_are_right_on_several_ranks(run_ranks, world_size):
    run_ranks(_run_cases, world_size, world_size)


@pytest.mark.usefixtures("group_of_one")
def test_random_calls_are_right_in_a_group_of_one():
    _run_cases(0, 1)


def test_random_calls_are_right_without_a_group():
    _run_cases(0, 1)
