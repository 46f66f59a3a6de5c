import copy

import pytest
import torch
from test_training_loop import make_groups, make_params, train

import mm_npu
from mm_npu import ConfigError, NpuFusedAdamW

pytestmark = pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")

GROUP_KEYS = {"lr", "betas", "eps", "weight_decay", "amsgrad", "params"}
amsgrad = pytest.mark.parametrize("amsgrad", [False, True], ids=["plain", "amsgrad"])


def as_torch_npu_writes_it(state_dict):
    """Lay a state of torch.optim.AdamW out as torch_npu does: int steps, five hyper-parameters."""
    state = {
        index: {**entry, "step": int(entry["step"])} for index, entry in state_dict["state"].items()
    }
    groups = [
        {key: value for key, value in group.items() if key in GROUP_KEYS}
        for group in state_dict["param_groups"]
    ]
    return {"state": state, "param_groups": groups}


@amsgrad
def test_the_state_is_laid_out_as_torch_npu_does(amsgrad):
    params = make_params()
    optimizer = NpuFusedAdamW(make_groups(params), amsgrad=amsgrad)
    train(optimizer, params, range(3))
    state_dict = optimizer.state_dict()
    assert [set(group) for group in state_dict["param_groups"]] == [GROUP_KEYS, GROUP_KEYS]
    keys = {"step", "exp_avg", "exp_avg_sq"} | ({"max_exp_avg_sq"} if amsgrad else set())
    for entry in state_dict["state"].values():
        assert set(entry) == keys
        assert type(entry["step"]) is int
        assert entry["step"] == 3


@amsgrad
@pytest.mark.parametrize("layout", [lambda state: state, as_torch_npu_writes_it], ids=["t", "npu"])
def test_a_state_of_adamw_or_torch_npu_is_gone_on_with(amsgrad, layout):
    theirs, ours = make_params(), make_params()
    adamw = torch.optim.AdamW(make_groups(theirs), lr=0.01, amsgrad=amsgrad, foreach=False)
    train(adamw, theirs, range(5))
    state_dict = layout(copy.deepcopy(adamw.state_dict()))
    before = copy.deepcopy(state_dict)
    for mine, value in zip(ours, theirs, strict=True):
        mine.data.copy_(value.data)
    optimizer = NpuFusedAdamW(make_groups(ours))
    optimizer.load_state_dict(state_dict)
    torch.testing.assert_close(state_dict, before)
    assert optimizer.param_groups[0]["lr"] == 0.01
    train(adamw, theirs, range(5, 10))
    train(optimizer, ours, range(5, 10))
    torch.testing.assert_close(ours, theirs)


@amsgrad
@pytest.mark.parametrize("target", [NpuFusedAdamW, torch.optim.AdamW])
def test_our_state_is_gone_on_with_by_us_and_by_adamw(amsgrad, target):
    params = make_params()
    optimizer = NpuFusedAdamW(make_groups(params), lr=0.01, amsgrad=amsgrad)
    train(optimizer, params, range(5))
    resumed_params = copy.deepcopy(params)
    resumed = target(make_groups(resumed_params))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, params, range(5, 10))
    train(resumed, resumed_params, range(5, 10))
    torch.testing.assert_close(resumed_params, params)


def test_writing_a_state_leaves_the_optimizer_alone():
    params, reference = make_params(), make_params()
    optimizer, untouched = NpuFusedAdamW(params), NpuFusedAdamW(reference)
    for step in range(4):
        optimizer.state_dict()
        train(optimizer, params, [step])
        train(untouched, reference, [step])
    torch.testing.assert_close(params, reference, rtol=0, atol=0)


@pytest.mark.skipif(
    not hasattr(torch, "compile"), reason="the safe loader of torch 1.13 reads no Python float"
)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # torch 2.0's own
def test_a_state_that_only_torch_save_has_seen_loads_safely(tmp_path):
    params = make_params()
    optimizer = NpuFusedAdamW(params)
    train(optimizer, params, [1])
    torch.save(optimizer.state_dict(), tmp_path / "state.pth")
    loaded = torch.load(tmp_path / "state.pth", weights_only=True)
    torch.testing.assert_close(loaded, optimizer.state_dict())


def test_a_state_of_another_rule_is_refused():
    params = make_params()
    optimizer = NpuFusedAdamW(params)
    with pytest.raises(ConfigError, match="a state without betas, eps, amsgrad"):
        optimizer.load_state_dict(torch.optim.SGD(params, lr=0.1).state_dict())
    maximizing = torch.optim.AdamW(params, maximize=True)
    with pytest.raises(ConfigError, match="maximize=True; it only minimizes"):
        optimizer.load_state_dict(maximizing.state_dict())


TWINS = {
    "Adadelta": {},
    "Adam": {"amsgrad": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "SGD": {"lr": 0.1, "momentum": 0.9},
}


@pytest.mark.parametrize("name", sorted(TWINS))
@pytest.mark.parametrize("direction", ["from torch", "to torch"])
def test_states_are_exchanged_with_torchs_class_of_the_rule(name, direction):
    classes = [getattr(torch.optim, name), getattr(mm_npu, f"NpuFused{name}")]
    first, second = classes if direction == "from torch" else reversed(classes)
    params = make_params()
    optimizer = first(make_groups(params), **TWINS[name])
    train(optimizer, params, range(1, 5))
    resumed_params = copy.deepcopy(params)
    resumed = second(make_groups(resumed_params), **{"lr": 9.0, **TWINS[name]})
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, params, range(5, 9))
    train(resumed, resumed_params, range(5, 9))
    torch.testing.assert_close(resumed_params, params)


def test_a_state_laid_out_in_another_way_is_laid_out_like_its_parameter():
    def make(memory_format):
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(4, 3, 2, 2, generator=generator).contiguous(
            memory_format=memory_format
        )
        return torch.nn.Parameter(weight)

    for name in ("Adam", "RMSprop"):
        start, end = make(torch.contiguous_format), make(torch.channels_last)
        optimizers = [getattr(mm_npu, f"NpuFused{name}")([p], lr=0.1) for p in (start, end)]
        for step in range(1, 6):
            for p, optimizer in zip((start, end), optimizers, strict=True):
                generator = torch.Generator().manual_seed(step)
                p.grad = torch.randn(p.shape, generator=generator).contiguous(
                    memory_format=torch.channels_last if p is end else torch.contiguous_format
                )
                optimizer.step()
            optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
        torch.testing.assert_close(start.detach(), end.detach())
