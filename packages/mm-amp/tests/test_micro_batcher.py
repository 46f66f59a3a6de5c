"""Batches in parts: out of memory is raised by the tests, everything else is real."""

import copy
import logging

import pytest
import torch
import torch.distributed as dist
from conftest import DTYPES, train_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mm_amp import (
    AmpOptimWrapper,
    ConfigError,
    MicroBatcher,
    MicroBatchError,
    OptimWrapper,
    OptimWrapperDict,
    UnsupportedError,
)

_CPU_MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:66] . DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"
)


def _make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


def _wrap(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return OptimWrapper(optimizer, **options)


def _batches(seed=0, sizes=(8, 8, 6, 8)):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "inputs": torch.randn(size, 4, generator=generator),
            "targets": torch.randn(size, 1, generator=generator),
        }
        for size in sizes
    ]


class _Memory:
    """Computes the loss, and runs out of memory where a part is larger than ``limit``."""

    def __init__(self, model, limit, when="forward", error=None):
        self.model = model
        self.limit = limit
        self.when = when
        self.error = error or RuntimeError(_CPU_MESSAGE)
        self.sizes = []

    def __call__(self, part):
        size = len(part["inputs"])
        self.sizes.append(size)
        if size > self.limit and self.when == "start":
            raise self.error
        output = self.model(part["inputs"])
        if size > self.limit and self.when == "forward":
            raise self.error
        if size > self.limit and self.when == "backward":
            output.register_hook(self._fail)
            # Some gradients are there by then.
            return (
                nn.functional.mse_loss(output, part["targets"])
                + next(self.model.parameters()).sum()
            )
        return nn.functional.mse_loss(output.float(), part["targets"])

    def _fail(self, _):
        raise self.error


def _state(model, wrapper):
    optimizer = wrapper.optimizer.state_dict()["state"]
    momenta = [value["momentum_buffer"] for value in optimizer.values()]
    return [*copy.deepcopy(list(model.state_dict().values())), *momenta]


def _assert_equal(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("when", ["start", "forward", "backward"])
def test_after_running_out_of_memory_all_is_as_if_it_had_begun_with_that_size(when):
    states = []
    for start, limit in ((None, 3), (2, 8)):
        model = _make_model()
        wrapper = _wrap(model, accumulative_counts=2)
        batcher = MicroBatcher(wrapper, model, start=start)
        memory = _Memory(model, limit, when)
        torch.manual_seed(7)
        stepped = [batcher.update_params(batch, memory).stepped for batch in _batches()]
        assert stepped == [False, True, False, True]
        assert batcher.size == 2
        states.append([*_state(model, wrapper), torch.rand(1)])  # the generator too
    _assert_equal(*states)


def test_the_batch_is_repeated_in_halves(caplog):
    model = _make_model()
    batcher = MicroBatcher(_wrap(model), model, start=9)
    memory = _Memory(model, 3)
    batcher.update_params(_batches(sizes=(16,))[0], memory)
    assert memory.sizes == [8, 4, 2, 2, 2, 2, 2, 2, 2, 2]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "Memory ran out with parts of 8 samples; this batch is repeated in parts of 4.",
        "Memory ran out with parts of 4 samples; this batch is repeated in parts of 2.",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 50])
@pytest.mark.parametrize("window", [1, 3])
def test_gradients_equal_those_of_whole_batches(model, batches, size, window):
    twin = copy.deepcopy(model)
    wrapper, plain = (
        _wrap(one, accumulative_counts=window, clip_grad={"max_norm": 0.5}) for one in (model, twin)
    )
    batcher = MicroBatcher(wrapper, model, start=size)
    for one in (wrapper, plain):
        one.initialize_count_status(model, 0, len(batches))
    for batch in batches:
        ours = batcher.update_params(
            batch, lambda part: nn.functional.mse_loss(model(part[0]), part[1])
        )
        theirs = train_step(plain, twin, batch)
        assert ours.stepped == theirs.stepped
        with torch.no_grad():
            assert batcher.last_loss.shape == ()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_whole_batches_without_trouble_are_bit_equal_to_the_wrapper_alone(model, batches):
    twin = copy.deepcopy(model)
    wrapper, plain = _wrap(model), _wrap(twin)
    batcher = MicroBatcher(wrapper, model)
    for batch in batches:
        batcher.update_params(batch, lambda part: nn.functional.mse_loss(model(part[0]), part[1]))
        train_step(plain, twin, batch)
    _assert_equal(model.parameters(), twin.parameters())


@pytest.mark.parametrize("dtype", DTYPES)
def test_mixed_precision(model, batches, dtype):
    wrapper = AmpOptimWrapper(
        torch.optim.SGD(model.parameters(), lr=0.1), {"init_scale": 64.0}, dtype, max_skips=2
    )
    batcher = MicroBatcher(wrapper, model)
    seen = set()

    def compute_loss(part):
        output = model(part[0])
        seen.add(output.dtype)
        if len(output) > 3:
            raise RuntimeError(_CPU_MESSAGE)
        return nn.functional.mse_loss(output.float(), part[1])

    for batch in batches:
        assert bool(batcher.update_params(batch, compute_loss).stepped)
    assert seen == {wrapper.dtype}
    assert batcher.size == 3


def test_weights_count_the_batch_as_a_whole(model):
    twin = copy.deepcopy(model)
    wrapper, plain = (_wrap(one, accumulative_counts=2) for one in (model, twin))
    batcher = MicroBatcher(wrapper, model, start=2)
    for batch in _batches(sizes=(7, 2, 5, 6)):
        size = len(batch["inputs"])
        batcher.update_params(batch, _Memory(model, 99), weight=size)
        with plain.optim_context(twin):
            loss = _Memory(twin, 99)(batch)
        plain.update_params(loss, weight=size)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_losses_that_add_up(model, batches):
    grads = []
    for size in (None, 4):
        model.zero_grad()
        wrapper = _wrap(model, accumulative_counts=2)
        batcher = MicroBatcher(wrapper, model, start=size, loss_reduction="sum")
        batcher.update_params(batches[0], lambda part: (model(part[0]) - part[1]).square().sum())
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried ..."), id="cuda"),
        pytest.param(RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB"), id="npu"),
        pytest.param(RuntimeError("MPS backend out of memory"), id="mps"),
        pytest.param(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when"), id="cublas"),
        pytest.param(RuntimeError("DefaultCPUAllocator: not enough memory: you"), id="windows"),
        pytest.param(MemoryError(), id="python"),
    ],
)
def test_out_of_memory_of_every_device_is_known(error):
    model = _make_model()
    batcher = MicroBatcher(_wrap(model), model)
    assert batcher.update_params(_batches()[0], _Memory(model, 4, error=error)).stepped
    assert batcher.size == 4


def test_memory_that_really_runs_out():
    model = _make_model()
    batcher = MicroBatcher(_wrap(model), model)

    def compute_loss(part):
        if len(part["inputs"]) > 4:
            torch.empty(2**60, dtype=torch.uint8)
        return model(part["inputs"]).mean()

    assert batcher.update_params(_batches()[0], compute_loss).stepped
    assert batcher.size == 4


class _Interrupted(BaseException):
    """Stands in for Ctrl-C."""


_ERRORS = [KeyError("oops"), _Interrupted("oops")]


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("error", _ERRORS, ids=lambda error: type(error).__name__)
def test_failed_batch_leaves_no_trace(error, weighted):
    states = []
    for fails in (False, True):
        torch.manual_seed(1)
        model = _make_model()
        wrapper = _wrap(model, accumulative_counts=2, max_skips=9)
        batcher = MicroBatcher(wrapper, model, start=3)
        for index, batch in enumerate(_batches(sizes=(7, 2, 5, 6))):
            weight = {"weight": len(batch["inputs"])} if weighted else {}
            for _ in range(fails):  # first, within and between windows
                count, loss = wrapper.inner_count, batcher.last_loss
                broken = _Memory(model, 2 if index else 0, "backward", error)
                with pytest.raises(type(error), match="oops"):
                    batcher.update_params(_batches()[1], broken, **weight)
                assert (wrapper.inner_count, batcher.last_loss) == (count, loss)
            batcher.update_params(batch, _Memory(model, 99), **weight)
        assert batcher.size == 3
        states.append([*_state(model, wrapper), batcher.last_loss])
    _assert_equal(*states)


def test_failed_batch_does_not_decide_whether_the_run_is_weighted():
    model = _make_model()
    batcher = MicroBatcher(_wrap(model), model)
    with pytest.raises(KeyError, match="oops"):
        batcher.update_params(_batches()[0], _Memory(model, 0, error=KeyError("oops")), weight=8)
    assert batcher.update_params(_batches()[0], _Memory(model, 99)).stepped


def test_one_sample_too_large_is_an_error():
    model = nn.Linear(4, 1)
    batcher = MicroBatcher(_wrap(model), model, start=2)
    with pytest.raises(MicroBatchError, match=r"parts of one sample .*can't allocate memory"):
        batcher.update_params(_batches()[0], _Memory(model, 0))


def test_a_split_that_cuts_nothing_is_not_asked_for_ever():
    model = nn.Linear(4, 1)
    batcher = MicroBatcher(_wrap(model), model, split=lambda batch, _: [(batch, 8)])
    with pytest.raises(MicroBatchError, match=r"parts of 8 samples.*at most 4 \(.*allocate"):
        batcher.update_params(_batches()[0], _Memory(model, 0))


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ([], "split returned no samples"),
        ([("part", 0)], "split returned no samples"),
        (["part"], "split returned a str among its parts; each must be a pair"),
        ([("part", -1)], "samples that split returned is -1"),
        ([("part", "8")], "samples that split returned is '8'"),
    ],
    ids=str,
)
def test_what_a_split_returns_is_checked(model, sgd, parts, match):
    batcher = MicroBatcher(OptimWrapper(sgd), model, split=lambda *_: parts)
    with pytest.raises(ConfigError, match=match):
        batcher.update_params(torch.ones(8, 4), lambda part: model(part).mean())


def test_parts_grow_again_and_wait_longer_after_each_failure():
    model = _make_model()
    batcher = MicroBatcher(_wrap(model), model, start=8, grow_after=2)
    memory = _Memory(model, 4)
    sizes = []
    for batch in _batches(sizes=[8] * 12):
        batcher.update_params(batch, memory)
        sizes.append(batcher.size)
    # Down to 4; after two good ones 8 is tried and fails, then only after four, and so on.
    assert sizes == [4, 8, 4, 4, 4, 8, 4, 4, 4, 4, 4, 4]
    memory.limit = 8
    for batch in _batches(sizes=[8] * 3):
        batcher.update_params(batch, memory)
    assert batcher.size == 8


def test_constant_buffers_are_copied_only_until_known(monkeypatch):
    model = _make_model()
    model.register_buffer("table", torch.zeros(1000))
    model.register_buffer("cache", torch.zeros(2))
    batcher = MicroBatcher(_wrap(model), model)
    batcher.update_params(_batches()[0], _Memory(model, 8))
    cloned = []
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda one: cloned.append(one.numel()) or clone(one))
    memory = _Memory(model, 8)

    def compute_loss(part):
        if len(part["inputs"]) == 8:
            model.cache = torch.ones(5)
            raise RuntimeError(_CPU_MESSAGE)
        assert len(model.cache) == 2  # a buffer that was replaced is put back
        return memory(part)

    batcher.update_params(_batches()[1], compute_loss)
    assert sorted(cloned) == [1, 8, 8]  # the batch norm's three


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"start": 0}, "start is 0"),
        ({"grow_after": 1.5}, "grow_after is 1.5"),
        ({"loss_reduction": "max"}, "loss_reduction is 'max'"),
    ],
)
def test_mistakes_show_when_it_is_built(model, sgd, options, match):
    with pytest.raises(ConfigError, match=match):
        MicroBatcher(OptimWrapper(sgd), model, **options)


def test_what_is_no_wrapper_is_refused(model, sgd):
    for wrapper in (sgd, OptimWrapperDict(one=OptimWrapper(sgd))):
        with pytest.raises(ConfigError, match="must be an OptimWrapper"):
            MicroBatcher(wrapper, model)
    with pytest.raises(ConfigError, match="must be a Module"):
        MicroBatcher(OptimWrapper(sgd), print)


class _StandInDevice:
    """Stands in for an accelerator's module: torch has none of it here."""

    log: list

    @classmethod
    def empty_cache(cls):
        cls.log.append("empty")

    @classmethod
    def get_rng_state(cls, device="abacus"):
        return f"state of {device}"

    @classmethod
    def set_rng_state(cls, new_state, device="abacus"):
        cls.log.append((new_state, str(device)))


def test_stand_in_device_gets_its_generator_back_and_gives_memory_back(monkeypatch):
    from mm_amp._out_of_memory import free_memory  # noqa: PLC0415
    from mm_amp._replay import RandomState  # noqa: PLC0415

    class _Device:
        type = "abacus"

        def __str__(self):
            return "abacus:1"

    _StandInDevice.log = log = []
    monkeypatch.setattr(torch, "abacus", _StandInDevice, raising=False)
    RandomState({_Device()}).restore()
    free_memory(_Device())
    assert log == [("state of abacus:1", "abacus:1"), "empty"]


# On two ranks.


def _train_on_rank(rank, start, limit, when):
    model = DistributedDataParallel(_make_model())
    wrapper = _wrap(model, accumulative_counts=2)
    batcher = MicroBatcher(wrapper, model, start=start)
    # Only the second rank runs out of memory, and it has other batches.
    memory = _Memory(model, limit if rank == 1 else 99, when)
    torch.manual_seed(7 + rank)
    for batch in _batches(rank, (8, 8, 6 + 2 * rank, 8)):
        batcher.update_params(batch, memory)
    return batcher.size, [*_state(model, wrapper), torch.rand(1)]


@pytest.mark.parametrize("when", ["start", "forward", "backward"])
def test_all_ranks_go_down_together(rank_pool, when):
    ours = rank_pool.run(_train_on_rank, None, 3, when)
    theirs = rank_pool.run(_train_on_rank, 2, 99, when)
    assert [size for size, _ in ours] == [2, 2]
    for (_, one), (_, other) in zip(ours, theirs, strict=True):
        _assert_equal(one, other)
    num_parameters = 6
    names = list(_make_model().state_dict())
    for name, one, other in zip(names, ours[0][1], ours[1][1], strict=False):
        if "running" not in name:
            _assert_equal([one], [other])
    assert len(ours[0][1]) == len(names) + num_parameters + 1


class _Branches(nn.Module):
    """Which parameters are used differs between ranks; some are never used, some are frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.all = nn.Linear(4, 1)
        self.by_rank = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        self.never = nn.Linear(4, 1)
        self.frozen = nn.Linear(4, 1).requires_grad_(requires_grad=False)

    def forward(self, inputs):
        used = self.by_rank[dist.get_rank()]
        return self.all(inputs) + used(inputs) + self.frozen(inputs)


def _equals_ddp(rank, as_views):
    """Compare with DDP's own steps on whole batches, before, between and after those in parts."""
    models = [
        DistributedDataParallel(
            _Branches(), find_unused_parameters=True, gradient_as_bucket_view=as_views
        )
        for _ in range(2)
    ]
    ours, theirs = (_wrap(model, accumulative_counts=2) for model in models)
    batcher = MicroBatcher(ours, models[0], start=3)
    memory = _Memory(models[0], 99)
    for index, batch in enumerate(_batches(rank, [6 + rank] * 12)):
        for wrapper, model in zip((ours, theirs), models, strict=True):
            if wrapper is ours and index // 2 % 2:
                batcher.update_params(batch, memory)
                continue
            with wrapper.optim_context(model):
                loss = _Memory(model, 99)(batch)
            wrapper.update_params(loss)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    unused = [p for p in models[0].module.never.parameters() if p.grad is not None]
    return len(unused)


@pytest.mark.parametrize("as_views", [False, True])
def test_ranks_get_the_gradients_that_ddp_would_give(rank_pool, as_views):
    assert rank_pool.run(_equals_ddp, as_views) == [0, 0]


def _fail_on_one_rank(rank):
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.5)))
    batcher = MicroBatcher(_wrap(model), model)
    error = KeyError("oops") if rank == 1 else None
    random = torch.get_rng_state()
    try:
        batcher.update_params(_batches()[0], _Memory(model, 0 if rank == 1 else 99, error=error))
    except (KeyError, MicroBatchError) as raised:
        first = repr(raised)
    assert batcher.last_loss is None  # of a rank that had got through too
    assert torch.equal(torch.get_rng_state(), random)
    batcher.update_params(_batches()[0], _Memory(model, 99))  # and on it goes
    try:
        batcher.update_params(_batches()[0], _Memory(model, 0 if rank == 1 else 99))
    except MicroBatchError as raised:
        return first, str(raised)
    return None


def test_a_rank_that_fails_leaves_no_other_waiting(rank_pool):
    (first, too_large), (second, also_too_large) = rank_pool.run(_fail_on_one_rank)
    assert first.startswith("MicroBatchError('another rank failed")
    assert second == "KeyError('oops')"
    assert "parts of one sample (on another rank)" in too_large
    assert "can't allocate memory" in also_too_large


def _agree_beside_the_device(rank):
    """A stand-in for NCCL, which would wait for the device: the default group claims to be it."""
    model = DistributedDataParallel(nn.Linear(4, 1))
    is_known, backend_of = dist.get_backend(), dist.get_backend

    def get_backend(group=None):
        return "nccl" if group in {None, dist.group.WORLD} else backend_of(group)

    dist.get_backend = get_backend
    try:
        batcher = MicroBatcher(_wrap(model), model)
    finally:
        dist.get_backend = backend_of
    memory = _Memory(model, 4 if rank == 1 else 99)
    batcher.update_params(_batches(rank)[0], memory)
    group = batcher._ranks._group
    return is_known, group is not dist.group.WORLD, backend_of(group), memory.sizes[-1]


def test_ranks_agree_on_the_host_stand_in(rank_pool):
    assert rank_pool.run(_agree_beside_the_device) == [("gloo", True, "gloo", 4)] * 2


def _refuse(rank):
    del rank
    found = []

    def build(model):
        try:
            MicroBatcher(_wrap(model), model)
        except UnsupportedError as error:
            found.append(str(error))

    build(nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4)))
    hooked = DistributedDataParallel(nn.Linear(4, 4))
    hooked.register_comm_hook(None, _hook)
    build(hooked)
    build(DistributedDataParallel(nn.Linear(4, 4), static_graph=True))
    build(nn.Linear(4, 4))  # nothing to refuse
    return found


def _hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    del state
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future()


def test_ranks_that_talk_elsewhere_are_refused(rank_pool):
    for sync_batch_norm, hooked, static in rank_pool.run(_refuse):
        assert "with SyncBatchNorm: its ranks exchange data" in sync_batch_norm
        assert "communication hook" in hooked
        assert "static_graph=True" in static


def _refuse_sharded(rank):
    del rank
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - new torch

    model = nn.Sequential(nn.Linear(4, 4))
    late = MicroBatcher(_wrap(model), model)
    fully_shard(model[0])
    for use in (
        lambda: MicroBatcher(_wrap(model), model),
        lambda: late.update_params(_batches()[0], _Memory(model, 99)),
    ):
        with pytest.raises(UnsupportedError, match="FSDPLinear made by fully_shard"):
            use()


@pytest.mark.skipif(
    not hasattr(getattr(getattr(torch, "cpu", None), "Stream", None), "record_event"),
    reason="sharding works on the CPU after torch 2.6",
)
def test_sharded_models_are_refused_when_built_and_when_used(rank_pool):
    rank_pool.run(_refuse_sharded)
