"""What a training loop does with an optimizer, besides stepping."""

import pytest
import torch

from mm_npu import NpuFusedAdamW

pytestmark = pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")

SHAPES = [(4, 3), (3,), ()]


def make_params(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
        for shape in SHAPES
    ]


def make_groups(params):
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.03, "weight_decay": 0.0}]


def gradients(step):
    generator = torch.Generator().manual_seed(100 + step)
    # Of shrinking size, so that amsgrad's largest second moment differs from the running one.
    scale = 2.0 / (1 + step)
    return [
        scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES
    ]


def give_gradients(params, step):
    for parameter, gradient in zip(params, gradients(step), strict=True):
        parameter.grad = gradient.to(parameter.dtype)


def train(optimizer, params, steps):
    for step in steps:
        give_gradients(params, step)
        optimizer.step()


@pytest.mark.parametrize("amsgrad", [False, True], ids=["plain", "amsgrad"])
def test_the_defaults_are_those_of_torchs_adamw(amsgrad):
    ours, theirs = make_params(), make_params()
    train(NpuFusedAdamW(ours, amsgrad=amsgrad), ours, range(20))
    train(torch.optim.AdamW(theirs, amsgrad=amsgrad), theirs, range(20))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_gradients_are_zeroed_by_default_and_dropped_on_demand():
    params = make_params()
    optimizer = NpuFusedAdamW(params)
    give_gradients(params, 1)
    optimizer.zero_grad()
    assert all(not parameter.grad.any() for parameter in params)
    optimizer.zero_grad(set_to_none=True)
    assert all(parameter.grad is None for parameter in params)


def test_gradients_are_clipped_over_all_groups():
    params, reference = make_params(), make_params()
    give_gradients(params, 1)
    give_gradients(reference, 1)
    total = NpuFusedAdamW(make_groups(params)).clip_grad_norm_fused_(0.5)
    expected = torch.nn.utils.clip_grad_norm_(reference, 0.5)
    torch.testing.assert_close(total, expected)
    for ours, theirs in zip(params, reference, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_scheduler_moves_the_learning_rate():
    params = make_params()
    optimizer = NpuFusedAdamW(params, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    train(optimizer, params, [1])
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert optimizer.state_dict()["param_groups"][0]["initial_lr"] == 0.1


@pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="this torch scales gradients on CUDA only"
)
def test_a_gradient_scaler_steps_and_skips():
    params = make_params()
    optimizer = NpuFusedAdamW(params, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = [parameter.detach().clone() for parameter in params]
    scaler.scale(sum(parameter.sum() for parameter in params)).backward()
    params[0].grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close([p.detach() for p in params], before, rtol=0, atol=0)
    optimizer.zero_grad()
    scaler.scale(sum(parameter.sum() for parameter in params)).backward()
    scaler.step(optimizer)
    assert not torch.equal(params[0], before[0])
