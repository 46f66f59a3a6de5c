import copy

import pytest
import torch
from conftest import needs_cpu_float16, train_step
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mm_amp import AmpOptimWrapper, OptimWrapper


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


def test_the_counter_counts():
    with _CountScalarReads() as reads:
        assert torch.ones(()) == 1
        torch.ones(()).item()
    assert reads.count == 2


@pytest.mark.parametrize("dtype", [None, "bfloat16"], ids=["float32", "bfloat16"])
def test_steps_without_a_scaler_never_wait(model, sgd, batches, dtype):
    options = {"accumulative_counts": 2, "clip_grad": {"max_norm": 1.0}}
    wrapper = (
        AmpOptimWrapper(sgd, dtype=dtype, **options) if dtype else OptimWrapper(sgd, **options)
    )
    wrapper.initialize_count_status(model, 0, 5)
    ours = _count_reads(lambda batch: train_step(wrapper, model, batch), batches[:5])
    # Clipping in torch 1.13 and 2.0 reads a scalar to look at the norm; later ones do not.
    assert ours == 3 * _reads_of_torch_clipping()


def _reads_of_torch_clipping():
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return _count_reads(lambda _: nn.utils.clip_grad_norm_([parameter], 1.0), [None])


@needs_cpu_float16
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_float16_waits_no_more_often_than_torch(model, batches, fused):
    twin = copy.deepcopy(model)
    by_hand = torch.optim.SGD(twin.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu")

    def step_by_hand(batch):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(twin(batch[0]).float(), batch[1])
        scaler.scale(loss).backward()
        scaler.unscale_(by_hand)
        nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        scaler.step(by_hand)
        scaler.update()
        by_hand.zero_grad()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    wrapper = AmpOptimWrapper(optimizer, dtype="float16", clip_grad={"max_norm": 1.0})
    ours = _count_reads(lambda batch: train_step(wrapper, model, batch), batches)
    assert ours == _count_reads(step_by_hand, batches)
