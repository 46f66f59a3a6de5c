"""Mixed precision on NPUs: which scaler, which autocast, and the fused optimizers under both."""

import copy

import pytest
import torch
import torch_npu
from torch import nn

import mm_npu
from mm_amp import AmpOptimWrapper, ConfigError, OptimWrapper, autocast

pytestmark = pytest.mark.needs_device


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.seen = []

    def forward(self, images):
        scores = self.layers(images)
        self.seen.append(scores.dtype)
        return nn.functional.cross_entropy(scores, torch.zeros(len(images), device="npu").long())


def make(optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    net = Net().to("npu")
    return net, optimizer(net.parameters(), lr=0.05, **options)


def step(wrapper, net, scale=1.0):
    images = torch.linspace(-1, 1, 32, device="npu").view(4, 8)
    with wrapper.optim_context(net):
        loss = net(images) * scale
    return wrapper.update_params(loss), float(loss.detach())


@pytest.mark.parametrize(
    ("asked", "dtype"),
    [
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("auto", torch.bfloat16),
        (None, torch.float16),
    ],
)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, mm_npu.NpuFusedSGD])
def test_only_float16_gets_a_scaler(asked, dtype, optimizer):
    net, made = make(optimizer)
    wrapper = AmpOptimWrapper(made, dtype=asked, loss_scale=256.0)
    losses = [step(wrapper, net)[1] for _ in range(10)]
    assert losses[-1] < losses[0]
    assert set(net.seen) == {dtype}
    assert (wrapper.loss_scaler is not None) == (dtype == torch.float16)
    if dtype == torch.float16:
        assert wrapper.loss_scaler.is_enabled()
        assert wrapper.loss_scaler._scale.device.type == "npu"
        assert float(wrapper.loss_scaler.get_scale()) == 256.0


def test_autocast_without_a_device_is_the_npus():
    net, _ = make()
    with autocast(dtype="bfloat16"):
        net(torch.ones(2, 8, device="npu"))
    assert net.seen == [torch.bfloat16]
    with autocast("npu", enabled=False):
        net(torch.ones(2, 8, device="npu"))
    assert net.seen[1] == torch.float32


@pytest.mark.parametrize("name", ["NpuFusedAdamW", "NpuFusedSGD", "NpuFusedLamb"])
def test_an_overflow_skips_the_step_of_a_fused_optimizer(name):
    net, optimizer = make(getattr(mm_npu, name))
    wrapper = AmpOptimWrapper(optimizer, dtype="float16", loss_scale={"init_scale": 1024.0})
    assert isinstance(optimizer, getattr(torch_npu.optim, name))
    step(wrapper, net)
    before = [p.detach().clone() for p in net.parameters()]
    result, _ = step(wrapper, net, scale=float("inf"))
    assert (bool(result.stepped), bool(result.skipped)) == (False, True)
    assert float(wrapper.loss_scaler.get_scale()) == 512.0
    for p, expected in zip(net.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), expected, rtol=0, atol=0)
    result, _ = step(wrapper, net)
    assert (bool(result.stepped), bool(result.skipped)) == (True, False)
    assert all(bool(p.isfinite().all()) for p in net.parameters())
    assert any(not torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize("wrapper_class", [OptimWrapper, AmpOptimWrapper])
def test_gradients_are_clipped_where_the_fused_optimizer_reads_them(wrapper_class, monkeypatch):
    """The norm is measured and cut once over the flat gradients: the fused clip."""
    calls = []
    cls = torch_npu.optim.NpuFusedSGD
    fused_clip = cls.clip_grad_norm_fused_
    monkeypatch.setattr(
        cls,
        "clip_grad_norm_fused_",
        lambda self, *args, **kwargs: calls.append(args) or fused_clip(self, *args, **kwargs),
    )
    net, optimizer = make(mm_npu.NpuFusedSGD)
    options = {} if wrapper_class is OptimWrapper else {"dtype": "float16", "loss_scale": 64.0}
    wrapper = wrapper_class(optimizer, clip_grad={"max_norm": 1e-3}, **options)
    for _ in range(2):
        before = [p.detach().clone() for p in net.parameters()]
        result, _ = step(wrapper, net)
        assert float(result.grad_norm) > 1e-2
        moved = [(p.detach() - b).norm() for p, b in zip(net.parameters(), before, strict=True)]
        assert float(torch.stack(moved).norm()) == pytest.approx(0.05 * 1e-3, rel=1e-2)
    assert [arguments[0] for arguments in calls] == [1e-3] * 2


def test_accumulation_keeps_the_packed_gradients():
    whole, split = make(mm_npu.NpuFusedSGD), make(mm_npu.NpuFusedSGD)
    alone, accumulating = OptimWrapper(whole[1]), OptimWrapper(split[1], accumulative_counts=2)
    for _ in range(3):
        step(alone, whole[0])
        step(accumulating, split[0])
        step(accumulating, split[0])
    for a, b in zip(whole[0].parameters(), split[0].parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_scalers_state_comes_back():
    net, optimizer = make(mm_npu.NpuFusedAdamW)
    wrapper = AmpOptimWrapper(optimizer, dtype="float16", loss_scale={"init_scale": 128.0})
    step(wrapper, net)
    step(wrapper, net, scale=float("inf"))
    other_net, other = make(mm_npu.NpuFusedAdamW)
    resumed = AmpOptimWrapper(other, dtype="float16", loss_scale={"init_scale": 4.0})
    resumed.load_state_dict(copy.deepcopy(wrapper.state_dict()))
    other_net.load_state_dict(net.state_dict())
    assert float(resumed.loss_scaler.get_scale()) == 64.0
    step(wrapper, net)
    step(resumed, other_net)
    for a, b in zip(net.parameters(), other_net.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_dtype_that_the_npu_does_not_cast_to_is_refused():
    with pytest.raises(ConfigError):
        AmpOptimWrapper(make()[1], dtype="float64")


def test_the_npus_own_scaler_is_taken():
    wrapper = AmpOptimWrapper(make()[1], dtype="float16")
    assert type(wrapper.loss_scaler) is torch.npu.amp.GradScaler


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_torchs_own_fused_optimizers_are_scaled_too(optimizer):
    """torch_npu's scaler hands itself to their step, which torch 2 no longer takes."""
    net, fused = make(optimizer, fused=True)
    wrapper = AmpOptimWrapper(fused, dtype="float16", loss_scale={"init_scale": 256.0})
    plain_net, plain = make(optimizer)
    expected = AmpOptimWrapper(plain, dtype="float16", loss_scale={"init_scale": 256.0})
    for scale in (1.0, float("inf"), 1.0):
        result, _ = step(wrapper, net, scale)
        step(expected, plain_net, scale)
        assert bool(result.stepped) == (scale == 1.0)
        assert bool(result.skipped) == (scale != 1.0)
    assert float(wrapper.loss_scaler.get_scale()) == 128.0
    for a, b in zip(net.parameters(), plain_net.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_state_of_torchs_scaler_is_loaded_and_the_other_way_round():
    made = [AmpOptimWrapper(make()[1], dtype="float16", loss_scale={"init_scale": 64.0})]
    on_cpu = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    made.append(AmpOptimWrapper(on_cpu, dtype="float16", loss_scale={"init_scale": 8.0}))
    npu_state, cpu_state = (copy.deepcopy(one.state_dict()["loss_scaler"]) for one in made)
    for wrapper, state, scale in zip(made, (cpu_state, npu_state), (8.0, 64.0), strict=True):
        wrapper.load_state_dict({**wrapper.optimizer.state_dict(), "loss_scaler": state})
        assert float(wrapper.loss_scaler.get_scale()) == scale
