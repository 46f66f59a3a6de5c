"""The nine by name: the stand-in's own on its device, true to the rules and to the restrictions."""

import copy
import inspect

import pytest
import torch
import torch_npu
from conftest import DEVICE
from formulas import CASE_IDS, EACH_CASE, RULES, follow, make_gradients, make_groups, make_start

import mm_npu

each_name = pytest.mark.parametrize("name", sorted(RULES))
NUM_STEPS = 60
# Those that ask for lr, and what makes each keep every kind of state that it has.
OPTIONS = {
    "NpuFusedAdam": {"amsgrad": True},
    "NpuFusedAdamW": {"amsgrad": True},
    "NpuFusedBertAdam": {"lr": 0.01},
    "NpuFusedRMSprop": {"momentum": 0.9, "centered": True, "eps": 1e-3},
    "NpuFusedRMSpropTF": {"momentum": 0.9, "centered": True, "eps": 1e-3},
    "NpuFusedSGD": {"lr": 0.01, "momentum": 0.9},
}


def make_params(start, device=DEVICE):
    return [torch.nn.Parameter(p.to(device, torch.float32, copy=True)) for p in start]


def train(optimizer, params, steps, seed=0):
    """Take steps with gradients accumulated in place, as fused optimizers want it."""
    for step in steps:
        for p, gradient in zip(params, make_gradients(step, seed), strict=True):
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.copy_(gradient.to(p.dtype))
        optimizer.step()


def complete(name, options):
    """Complete a case by the constructor's defaults."""
    parameters = inspect.signature(getattr(torch_npu.optim, name)).parameters.values()
    return {**{p.name: p.default for p in parameters if p.default is not p.empty}, **options}


def error(params, expected):
    pairs = [(p.detach().cpu().double(), e) for p, e in zip(params, expected, strict=True)]
    largest = max(float(e.abs().max()) for _, e in pairs)
    return max(float((p - e).abs().max()) for p, e in pairs) / largest


def num_steps_of(options):
    """Say for how many steps the real one goes before it raises; None: for none."""
    if options.get("use_global_grad_norm"):
        return None
    if options.get("schedule") == "warmup_cosine":
        return int(options["warmup"] * options["t_total"])
    return NUM_STEPS


@pytest.mark.parametrize(("name", "options"), EACH_CASE, ids=CASE_IDS)
def test_the_name_gives_the_devices_own_and_that_follows_the_rule(name, options):
    params = make_params(make_start())
    optimizer = getattr(mm_npu, name)(make_groups(params), **options)
    assert type(optimizer).__module__.startswith("torch_npu.optim.")
    assert type(optimizer).__name__ == name
    num_steps = num_steps_of(options)
    if num_steps is None:
        with pytest.raises(AttributeError, match="get_optimizer_combined_grads"):
            train(optimizer, params, [1])
        return
    train(optimizer, params, range(1, num_steps + 1))
    expected, _ = follow(name, complete(name, options), make_start(), num_steps)
    assert error(params, expected) < 2e-5


@pytest.fixture
def portable(monkeypatch):
    """Make the nine portable, as on a machine without an NPU."""

    def make(name, params, **options):
        with monkeypatch.context() as patch:
            patch.setattr(
                "mm_npu._optimizers._npu_fused.npu_unavailable_reason", lambda: "as a laptop."
            )
            return getattr(mm_npu, name)(params, **options)

    return make


@each_name
@pytest.mark.parametrize("direction", ["from the npu", "to the npu"])
@pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")
def test_a_state_goes_on_training_on_the_other_side(portable, name, direction):
    options = OPTIONS.get(name, {})

    def on_npu(start):
        params = make_params(start)
        return getattr(mm_npu, name)(make_groups(params), **options), params

    def on_cpu(start):
        params = make_params(start, "cpu")
        return portable(name, make_groups(params), **options), params

    first, second = (on_npu, on_cpu) if direction == "from the npu" else (on_cpu, on_npu)
    optimizer, params = first(make_start())
    train(optimizer, params, range(1, 6))
    resumed, resumed_params = second([p.detach() for p in params])
    assert {type(optimizer).__module__.split(".")[0], type(resumed).__module__.split(".")[0]} == {
        "mm_npu",
        "torch_npu",
    }
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, params, range(6, 16))
    train(resumed, resumed_params, range(6, 16))
    assert error(resumed_params, [p.detach().cpu().double() for p in params]) < 1e-5


def test_strict_is_content_with_an_npu(monkeypatch):
    assert mm_npu.is_npu_available()
    assert mm_npu.npu_unavailable_reason() is None
    monkeypatch.setenv("MM_NPU_STRICT", "1")
    optimizer = mm_npu.NpuFusedAdamW(make_params(make_start()), strict=True)
    assert isinstance(optimizer, torch_npu.optim.NpuFusedAdamW)


@each_name
def test_gradients_are_cleared_in_place_only(name):
    params = make_params(make_start())
    optimizer = getattr(mm_npu, name)(params, **OPTIONS.get(name, {}))
    train(optimizer, params, [1])
    places = [p.grad.data_ptr() for p in params]
    with pytest.raises(ValueError, match="set_to_none"):
        optimizer.zero_grad(set_to_none=True)
    optimizer.zero_grad()
    assert [p.grad.data_ptr() for p in params] == places
    assert all(float(p.grad.abs().sum()) == 0 for p in params)


@pytest.mark.parametrize("name", ["NpuFusedLamb", "NpuFusedSGD"])
def test_all_parameters_lie_in_one_memory_after_the_first_step(name):
    params = make_params(make_start())
    optimizer = getattr(mm_npu, name)(params, **OPTIONS.get(name, {}))
    train(optimizer, params, [1])
    (flat, half) = optimizer.get_combined_params()
    assert half is None
    torch.testing.assert_close(
        flat, torch.cat([p.detach().flatten() for p in params]), rtol=0, atol=0
    )
    assert params[1].data_ptr() == flat.data_ptr() + 4 * params[0].numel()


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_the_fused_clip_is_torchs(norm_type):
    fused, plain = make_params(make_start()), make_params(make_start())
    optimizer = mm_npu.NpuFusedAdamW(fused)
    for mine, other, gradient in zip(fused, plain, make_gradients(1), strict=True):
        mine.grad = gradient.float().to(DEVICE)
        other.grad = mine.grad.clone()
    norm = optimizer.clip_grad_norm_fused_(0.5, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(plain, 0.5, norm_type)
    torch.testing.assert_close(norm, expected)
    for mine, other in zip(fused, plain, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_the_stand_in_itself_would_pack_and_forget(recwarn):
    """What the checks guard against: the class without them, as the real one."""
    params = make_params(make_start())
    optimizer = torch_npu.optim.NpuFusedAdam(params)
    params[0].grad = torch.ones_like(params[0])
    before = [p.detach().clone() for p in params]
    optimizer.step()
    assert not recwarn
    changed = [not torch.equal(p.detach(), b) for p, b in zip(params, before, strict=True)]
    assert changed == [True] + [False] * (len(params) - 1)
    params[1].grad = torch.ones_like(params[1])
    with pytest.raises(KeyError, match="step"):
        optimizer.step()
    half = torch.nn.Parameter(torch.ones(3, device=DEVICE, dtype=torch.bfloat16))
    half.grad = torch.ones_like(half)
    with pytest.raises(TypeError, match="float32 or float16"):
        torch_npu.optim.NpuFusedSGD([half], lr=0.1).step()


def test_switches_are_real_booleans(calls, monkeypatch):
    monkeypatch.setenv("NPUJITCompile", "False")
    switches = mm_npu.set_npu_switches()
    assert switches.jit_compile is False
    assert calls == [("set_compile_mode", False)]
    assert torch.npu.is_jit_compile_false()
    mm_npu.set_npu_switches(jit_compile=True, internal_format="off")
    assert calls[1:] == [("set_compile_mode", True), ("config.allow_internal_format", False)]


def test_asking_for_an_npu_touches_no_device(run_python):
    program = """
import mm_npu, torch
assert mm_npu.is_npu_available()
from torch_npu._calls import RECORDED
assert not RECORDED, RECORDED
assert not torch.npu.is_initialized()
assert mm_npu.npu_profiler().__name__ == "torch_npu.profiler"
"""
    run_python("-c", program)
