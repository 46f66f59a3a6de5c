import copy

import pytest
import torch
from conftest import needs_cpu_float16
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mm_amp import AmpOptimWrapper, OptimWrapper

_needs_fused = pytest.mark.skipif(
    not hasattr(torch, "get_autocast_dtype"), reason="fused on the CPU needs torch 2.4"
)
OPTIMIZERS = [
    pytest.param(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), id="SGD"),
    pytest.param(
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, fused=True),
        id="fused SGD",
        marks=_needs_fused,
    ),
    pytest.param(
        lambda model: torch.optim.Adam(model.parameters(), lr=0.1, fused=True),
        id="fused Adam",
        marks=_needs_fused,
    ),
]


class _CountScalarReads(TorchDispatchMode):
    """Count what makes the host wait for the device: ``item()``, ``float()``, ``bool()``."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def _count_reads(step, batches):
    with _CountScalarReads() as reads:
        for batch in batches:
            step(batch)
    return reads.count


@pytest.mark.parametrize("dtype", [None, "bfloat16"], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("weight", [None, 3, torch.tensor(3)], ids=["plain", "number", "tensor"])
def test_steps_without_a_scaler_never_wait(model, batches, dtype, make_optimizer, weight):
    optimizer = make_optimizer(model)
    options = {"accumulative_counts": 2, "clip_grad": {"max_norm": 1.0}}
    wrapper = (
        AmpOptimWrapper(optimizer, dtype=dtype, **options)
        if dtype
        else OptimWrapper(optimizer, **options)
    )
    wrapper.initialize_count_status(model, 0, 5)
    ours = _count_reads(lambda batch: _step(wrapper, model, batch, weight), batches[:5])
    # Some optimizers of torch read a scalar.
    assert ours == 3 * _reads_of_optimizer(make_optimizer)


def _step(wrapper, model, batch, weight):
    with wrapper.optim_context(model):
        loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1])
    wrapper.update_params(loss, weight=weight)
    assert not wrapper.step_skipped or wrapper.loss_scaler


def _reads_of_optimizer(make_optimizer):
    module = nn.Linear(1, 1)
    optimizer = make_optimizer(module)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    return _count_reads(lambda _: optimizer.step(), [None])


@needs_cpu_float16
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("max_norm", [None, 1.0], ids=["unclipped", "clipped"])
def test_float16_waits_no_more_often_than_torch(
    model, batches, monkeypatch, make_optimizer, max_norm
):
    twin = copy.deepcopy(model)
    by_hand = make_optimizer(twin)
    scaler = torch.amp.GradScaler("cpu")

    def step_by_hand(batch):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(twin(batch[0]).float(), batch[1])
        scaler.scale(loss).backward()
        if max_norm:
            scaler.unscale_(by_hand)
            nn.utils.clip_grad_norm_(twin.parameters(), max_norm)
        scaler.step(by_hand)
        scaler.update()
        by_hand.zero_grad()

    clip_grad = max_norm and {"max_norm": max_norm}
    wrapper = AmpOptimWrapper(make_optimizer(model), dtype="float16", clip_grad=clip_grad)
    # The locator reads after a skip, and only then.
    monkeypatch.setattr("mm_amp._scaling._locator.OverflowLocator.report", lambda *_, **__: None)
    ours = _count_reads(lambda batch: _step(wrapper, model, batch, None), batches)
    assert ours == _count_reads(step_by_hand, batches)
    assert wrapper.num_skipped > 0, "no step overflowed, so the way of skipped ones was not counted"
