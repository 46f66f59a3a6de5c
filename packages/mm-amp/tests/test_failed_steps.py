"""What goes wrong in one micro-batch, or one step, does not spoil the next."""

import copy
import math

import pytest
import torch
from conftest import needs_cpu_float16, train_step

from mm_amp import AmpOptimWrapper, NonFiniteError, OptimWrapper, UnsupportedError


def _fail_once(optimizer):
    """Let the next step of ``optimizer`` raise, as if memory had run out."""
    original, failures = optimizer.step, [MemoryError]

    def step(*args, **kwargs):
        if failures:
            raise failures.pop()
        return original(*args, **kwargs)

    optimizer.step = step


def _adam(model, **options):
    return torch.optim.Adam(model.parameters(), lr=0.01, **options)


def _float16(model, clip_grad=None, *, fused=False):
    return AmpOptimWrapper(
        _adam(model, fused=fused), {"init_scale": 1024.0}, "float16", clip_grad=clip_grad
    )


@needs_cpu_float16
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("clip_grad", [None, {"max_norm": 0.1}], ids=["unclipped", "clipped"])
def test_failed_step_can_be_tried_again(model, batches, clip_grad, fused):
    twin = copy.deepcopy(model)
    wrapper, other = (_float16(one, clip_grad, fused=fused) for one in (model, twin))
    _fail_once(wrapper.optimizer)
    with pytest.raises(MemoryError):
        train_step(wrapper, model, batches[0])
    wrapper.step()
    wrapper.zero_grad()
    train_step(other, twin, batches[0])
    train_step(wrapper, model, batches[1])
    train_step(other, twin, batches[1])
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=1e-5, atol=1e-6)


def test_micro_batch_whose_backward_failed_has_no_weight(model, batches):
    twin = copy.deepcopy(model)
    wrapper, other = (
        OptimWrapper(torch.optim.SGD(one.parameters(), lr=0.1), accumulative_counts=2)
        for one in (model, twin)
    )
    output = model(batches[0][0])
    output.register_hook(_raise)
    with pytest.raises(MemoryError):
        wrapper.update_params(output.mean(), weight=5)
    wrapper.zero_grad()
    for weight, (inputs, _) in zip((6, 2), batches, strict=False):
        wrapper.update_params(model(inputs).mean(), weight=weight)
        other.update_params(twin(inputs).mean(), weight=weight)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)


def _raise(*_):
    raise MemoryError


@needs_cpu_float16
def test_skips_in_a_row_start_again_from_a_loaded_state(model, batches):
    wrapper = AmpOptimWrapper(_adam(model), dtype="float16", max_skips=2)
    state = copy.deepcopy(wrapper.state_dict())
    bad = batches[0][0] * math.inf, batches[0][1]
    train_step(wrapper, model, bad)
    with pytest.raises(NonFiniteError):
        train_step(wrapper, model, bad)
    wrapper.zero_grad()
    wrapper.load_state_dict(state)
    assert not wrapper.step_skipped
    assert train_step(wrapper, model, bad).skipped
    assert wrapper.num_skipped == 3
    with pytest.raises(NonFiniteError):
        train_step(wrapper, model, bad)


@needs_cpu_float16
def test_gradients_of_another_backward_are_not_divided_by_the_loss_scale(model, batches):
    first = AmpOptimWrapper(torch.optim.SGD(model[0].parameters(), lr=0.1), 4.0, "float16")
    second = AmpOptimWrapper(torch.optim.SGD(model[2].parameters(), lr=0.1), 8.0, "float16")
    first.backward(model(batches[0][0]).mean())
    assert first.step().stepped
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsupportedError, match="no backward"):
        second.step()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
