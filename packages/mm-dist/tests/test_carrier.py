"""Mixed dtypes in one buffer, with several ranks' buffers in one process."""

import math
import random

import pytest
import torch
from collective_reference import DTYPES, assert_same, expect_reduced, operations_of, random_tensor

from mm_dist._collectives._carrier import Carrier
from mm_dist._collectives._dict_plan import make_plan

WORLD_SIZE = 3
REDUCE = {
    "sum": lambda rows: rows.sum(0),
    "product": lambda rows: rows.prod(0),
    "min": lambda rows: rows.amin(0),
    "max": lambda rows: rows.amax(0),
    "band": lambda rows: rows[0] & rows[1] & rows[2],
    "bor": lambda rows: rows[0] | rows[1] | rows[2],
    "bxor": lambda rows: rows[0] ^ rows[1] ^ rows[2],
}


def carry(carrier, tensors):
    rows = torch.stack([carrier.pack(tensor) for tensor in tensors])
    assert rows.shape[1] == carrier.count(tensors[0].dtype, tensors[0].numel())
    reduced = REDUCE[carrier.operation_on_wire](rows)
    return carrier.unpack(reduced, tensors[0].dtype, len(tensors)).reshape(tensors[0].shape)


def signature_of(dtypes, size=2):
    return tuple((f"data[{n}]", dtype, (size,)) for n, dtype in enumerate(dtypes))


@pytest.mark.parametrize("device_type", ["cpu", "npu"])
@pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "product", "band", "bor", "bxor"])
def test_what_a_plan_chooses_is_exact(op, device_type):
    # 'npu' is a stand-in for any device without float64: the arithmetic is done on the CPU.
    rng = random.Random(f"{op}{device_type}")  # noqa: S311 (no secret)
    dtypes = [dtype for dtype in DTYPES if op in operations_of(dtype)]
    for size in (2, 200, 2**19):
        for part in make_plan(op, signature_of(dtypes, size), device_type).parts:
            if part.carrier.dtype is None:
                continue  # The backend reduces it as it is.
            if device_type == "npu":
                assert part.carrier.dtype != torch.float64
            for index in part.indices:
                # float64 does not exist on such a device.
                if device_type == "npu" and dtypes[index] in (torch.float64, torch.complex128):
                    continue
                tensors = [random_tensor(rng, dtypes[index], (2, 5)) for _ in range(WORLD_SIZE)]
                assert_same(carry(part.carrier, tensors), expect_reduced(tensors, op))


def test_extremes_of_integers_are_exact_in_float64():
    info = torch.iinfo(torch.int64)
    rows = [torch.tensor([info.max, info.min, 2**53 + 1, -1]) for _ in range(WORLD_SIZE)]
    assert_same(carry(Carrier("sum", torch.float64), rows), expect_reduced(rows, "sum"))
    small = [torch.tensor([100, -100], dtype=torch.int8) for _ in range(WORLD_SIZE)]
    assert carry(Carrier("mean", torch.float64), small).tolist() == [100, -100]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_minimum_and_maximum_of_floats_keep_every_bit(dtype):
    tiny, huge = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    values = [0.0, -0.0, tiny, -tiny, huge, -huge, math.inf, -math.inf, 1.0, -1.5]
    rng = random.Random(0)  # noqa: S311 (no secret)
    rows = [torch.tensor(rng.sample(values, len(values)), dtype=dtype) for _ in range(WORLD_SIZE)]
    for op in ("min", "max"):
        result = carry(Carrier(op, torch.int64), rows)
        assert torch.equal(result, expect_reduced(rows, op))
        rows[1][0] = math.nan
        assert carry(Carrier(op, torch.int64), rows).isnan().tolist() == [True] + [False] * 9
        rows[1][0] = 0.0


def test_a_sum_of_floats_is_rounded_once():
    rows = [torch.tensor([value], dtype=torch.float16) for value in (2048.0, 1.0, 1.0)]
    assert carry(Carrier("sum", torch.float64), rows).item() == 2050.0


NUMBERS = [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64]


@pytest.mark.parametrize(
    ("op", "dtypes", "size", "device_type", "carriers"),
    [
        ("sum", NUMBERS, 1, "cpu", [torch.float64]),
        ("mean", [torch.float32], 1, "cuda", [torch.float64]),
        ("sum", [], 1, "cpu", [torch.float64]),
        ("sum", NUMBERS, 10_000, "cuda", [torch.float64]),
        ("sum", NUMBERS, 2**20, "cpu", [None] * 5),
        ("sum", [torch.float32] * 2, 10_000, "cpu", [None]),
        ("sum", [torch.int32, torch.int64], 10_000, "cpu", [torch.int64]),
        ("max", [torch.float32, torch.int64], 1, "npu", [torch.int64]),
        ("sum", [torch.float32, torch.int64], 1, "npu", [torch.int64, torch.float32]),
        ("sum", [torch.float32, torch.int64], 1, "xpu", [torch.int64, torch.float32]),
        ("sum", [torch.float64, torch.int64], 1, "xpu", [torch.float64]),
        ("product", [torch.float32, torch.int64], 1, "cpu", [torch.int64, torch.float64]),
        ("product", [torch.float32, torch.float16], 1, "mps", [torch.float32]),
        ("bxor", [torch.int8, torch.bool], 1, "cpu", [torch.int64]),
    ],
)
def test_a_plan_needs_few_collectives(op, dtypes, size, device_type, carriers):
    plan = make_plan(op, signature_of(dtypes, size), device_type)
    assert [part.carrier.dtype for part in plan.parts] == carriers
    assert sorted(i for part in plan.parts for i in part.indices) == list(range(len(dtypes)))
    assert plan.is_tagged == (size == 1 and op != "bxor")
