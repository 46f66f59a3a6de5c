"""For any window and any number of micro-batches: the gradients are those of the big batch."""

from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording import RecordingSGD, make_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from mm_amp import OptimWrapper

_RANKS = 2
_CLIPS = [None, {"max_norm": 0.05}, {"type": "value", "clip_value": 0.01}]
_CLIPS.append({"type": "agc", "clip_factor": 0.02})


class Case(NamedTuple):
    """One training run: each rank's micro-batches have ``sizes[i][rank]`` samples."""

    window: int
    sizes: list
    is_weighted: bool
    clip_grad: dict | None


@st.composite
def _cases(draw, ranks):
    is_weighted = draw(st.booleans())
    total = draw(st.integers(1, 11))
    sizes = st.integers(1, 5) if is_weighted else st.just(3)
    return Case(
        draw(st.integers(1, 5)),
        [[draw(sizes) for _ in range(ranks)] for _ in range(total)],
        is_weighted,
        draw(st.sampled_from(_CLIPS)),
    )


_TRIES = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def _make_batches(case):
    generator = torch.Generator().manual_seed(1)

    def rows(count, columns):
        return torch.randn(count, columns, generator=generator, dtype=torch.float64)

    return [[(rows(size, 4), rows(size, 1)) for size in sizes] for sizes in case.sizes]


def _train_on_big_batches(case):
    """Return gradients per step, and the parameters, of one process that sees whole windows."""
    model, batches = make_model(), _make_batches(case)
    optimizer = RecordingSGD(model.parameters(), lr=0.1)
    wrapper = OptimWrapper(optimizer, clip_grad=case.clip_grad)
    for start in range(0, len(batches), case.window):
        parts = [part for ranks in batches[start : start + case.window] for part in ranks]
        inputs, targets = (torch.cat(column) for column in zip(*parts, strict=True))
        wrapper.update_params(nn.functional.mse_loss(model(inputs), targets))
    return optimizer.seen, [p.detach() for p in model.parameters()]


def _train_wrapped(model, case, rank=0):
    """Train as a loop would; return gradients per step, and the parameters, whole."""
    optimizer = RecordingSGD(model.parameters(), lr=0.1)
    wrapper = OptimWrapper(optimizer, case.window, case.clip_grad)
    wrapper.initialize_count_status(model, 0, len(case.sizes))
    for batches in _make_batches(case):
        inputs, targets = batches[rank]
        with wrapper.optim_context(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
        wrapper.update_params(loss, weight=len(inputs) if case.is_weighted else None)
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return optimizer.seen, [p.detach().clone() for p in whole]


def _assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@_TRIES
@given(_cases(ranks=1))
def test_accumulation_equals_the_big_batch(case):
    gradients, parameters = _train_wrapped(make_model(), case)
    expected_gradients, expected_parameters = _train_on_big_batches(case)
    assert len(gradients) == -(-len(case.sizes) // case.window)
    _assert_close(gradients, expected_gradients)
    _assert_close(parameters, expected_parameters)


def _train_ddp(rank, case):
    passes = [[]]

    def count_and_average(_, bucket):
        passes[-1].append(bucket.index())
        if bucket.is_last():
            passes.append([])
        work = dist.all_reduce(bucket.buffer().div_(_RANKS), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.0001)  # several buckets
    model.register_comm_hook(None, count_and_average)
    with _CountCollectives("allreduce") as reductions:
        trained = _train_wrapped(model, case, rank)
    assert all(len(set(buckets)) == len(buckets) for buckets in passes)
    # DDP makes its small buckets after the first step, in the order in which gradients came. The
    # first of them holds at least 1 MiB in older versions.
    assert len(passes) < 3 or len(passes[1]) > 1 or not hasattr(torch, "accelerator")
    return *trained, len(passes) - 1, reductions.float32_scalars


class _CountCollectives(TorchDispatchMode):
    """Count collectives by a part of their name; those of one float32 apart: weights, here."""

    def __init__(self, name):
        super().__init__()
        self._name = name
        self.calls = self.float32_scalars = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d" and self._name in func.__name__:
            self.calls += 1
            tensor = args[0][0]
            self.float32_scalars += tensor.numel() == 1 and tensor.dtype == torch.float32
        return func(*args, **(kwargs or {}))


def _train_fully_sharded(rank, case):
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - new torch

    model = make_model()
    fully_shard(model[0])
    fully_shard(model)
    num_groups = 2
    with _CountCollectives("reduce_scatter") as synchronizations:
        trained = _train_wrapped(model, case, rank)
    return *trained, synchronizations.calls / num_groups


def _check_ranks(case, answers):
    expected_gradients, expected_parameters = _train_on_big_batches(case)
    for gradients, parameters, num_synchronizations, *_ in answers:
        assert num_synchronizations == len(expected_gradients), "one per group and optimizer step"
        _assert_close(gradients, expected_gradients)
        _assert_close(parameters, expected_parameters)
    torch.testing.assert_close(answers[0][:2], answers[1][:2], rtol=0, atol=0)


@settings(_TRIES, max_examples=25)
@given(_cases(ranks=_RANKS))
def test_accumulation_under_ddp_equals_the_big_batch(rank_pool, case):
    answers = rank_pool.run(_train_ddp, case)
    _check_ranks(case, answers)
    # One exchange of weights per step, and one before the first: is it a large number or a small?
    num_steps = -(-len(case.sizes) // case.window)
    begins_unknown = min(case.window, len(case.sizes)) > 1
    assert answers[0][3] == case.is_weighted * (num_steps + begins_unknown)


@pytest.mark.skipif(
    not hasattr(getattr(getattr(torch, "cpu", None), "Stream", None), "record_event"),
    reason="fully_shard works on the CPU after torch 2.6",
)
@settings(_TRIES, max_examples=25)
@given(_cases(ranks=_RANKS))
def test_accumulation_under_fully_shard_equals_the_big_batch(rank_pool, case):
    answers = rank_pool.run(_train_fully_sharded, case)
    _check_ranks(case, answers)
