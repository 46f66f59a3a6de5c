"""mm-npu's checks around torch_npu's own code: what they promise of a release, they keep."""

import copy
import warnings

import pytest
import torch
from formulas import RULES, make_groups, make_start
from test_trajectories import OPTIONS
from trajectories import error, make_params, train

from mm_npu import FusedOptimizerError, UntrainedParameterWarning
from mm_npu._optimizers._guard import guard_native

pytestmark = [
    # Of torch, about torch_npu's code.
    pytest.mark.filterwarnings("ignore:This overload of add_ is deprecated:UserWarning"),
]
each_name = pytest.mark.parametrize("name", sorted(RULES))


def make_guarded(originals, name, params, **more):
    optimizer = originals[name](make_groups(params), **{**OPTIONS.get(name, {}), **more})
    guard_native(optimizer)
    return optimizer


@each_name
def test_a_state_loaded_after_the_first_step_is_gone_on_with(originals, name):
    params = make_params(make_start())
    optimizer = make_guarded(originals, name, params)
    train(optimizer, params, range(1, 6), seed=0)
    state_dict = copy.deepcopy(optimizer.state_dict())
    resumed_params = make_params(make_start(1))
    resumed = make_guarded(originals, name, resumed_params, lr=0.5)
    train(resumed, resumed_params, range(1, 4), seed=1)
    assert not {"step", "_maybe_init_combined_params_and_grads"} & set(vars(resumed))
    resumed.load_state_dict(state_dict)
    for mine, theirs in zip(resumed_params, params, strict=True):
        mine.data.copy_(theirs.data)
    train(optimizer, params, range(6, 16), seed=0)
    train(resumed, resumed_params, range(6, 16), seed=0)
    assert error([p.detach() for p in resumed_params], [p.detach() for p in params]) == 0


def test_the_checkpoint_keeps_the_place_in_the_schedule(originals):
    options = {"lr": 0.01, "warmup": 0.1, "t_total": 50}
    params = make_params(make_start())
    optimizer = make_guarded(originals, "NpuFusedBertAdam", params, **options)
    train(optimizer, params, range(1, 21), seed=0)
    state_dict = copy.deepcopy(optimizer.state_dict())
    assert {entry["step"] for entry in state_dict["state"].values()} == {20}
    resumed_params = make_params([p.detach() for p in params])
    resumed = make_guarded(originals, "NpuFusedBertAdam", resumed_params, **options)
    resumed.load_state_dict(state_dict)
    train(optimizer, params, range(21, 41), seed=0)
    train(resumed, resumed_params, range(21, 41), seed=0)
    assert error([p.detach() for p in resumed_params], [p.detach() for p in params]) == 0


@pytest.mark.parametrize("name", ["Adadelta", "Adam", "AdamW", "RMSprop", "SGD"])
def test_a_state_of_torchs_class_of_the_rule_is_gone_on_with(originals, name):
    options = {"lr": 0.01, **OPTIONS.get(f"NpuFused{name}", {})}
    params = make_params(make_start())
    optimizer = getattr(torch.optim, name)(make_groups(params), **options)
    train(optimizer, params, range(1, 6), seed=0)
    resumed_params = make_params([p.detach() for p in params])
    resumed = make_guarded(originals, f"NpuFused{name}", resumed_params, **options)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, params, range(6, 16), seed=0)
    train(resumed, resumed_params, range(6, 16), seed=0)
    assert error([p.detach() for p in resumed_params], [p.detach() for p in params]) < 1e-5


@each_name
def test_what_gets_its_gradient_too_late_is_told_of_and_refused(originals, name):
    used, late = (torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    optimizer = originals[name]([used, late], lr=0.01)
    guard_native(optimizer)
    used.pow(2).sum().backward()
    with pytest.warns(UntrainedParameterWarning, match=r"none: param_groups\[0\]\[1\] of shape"):
        optimizer.step()
    late.pow(2).sum().backward()
    with pytest.raises(FusedOptimizerError, match="has got its first gradient after the first"):
        optimizer.step()


@each_name
def test_the_remedy_trains_what_gets_its_gradient_late(originals, name):
    used, late = (torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    optimizer = originals[name]([used, late], lr=0.01)
    guard_native(optimizer)
    used.pow(2).sum().backward()
    late.grad = torch.zeros_like(late)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=UntrainedParameterWarning)
        optimizer.step()
    before = late.detach().clone()
    late.pow(2).sum().backward()
    optimizer.step()
    assert not late.detach().equal(before)


@each_name
def test_gradients_that_share_memory_are_parted_before_they_are_packed(originals, name):
    def run(parts):
        params = make_params([torch.arange(1.0, 5.0), torch.arange(5.0, 11.0)])
        optimizer = originals[name]([{"params": [p]} for p in params], lr=0.01)
        guard_native(optimizer)
        for _ in range(3):
            torch.cat(params).pow(2).sum().backward()
            if parts:
                for p in params:
                    p.grad = p.grad.clone() if not optimizer.is_params_grads_combined else p.grad
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in params]

    torch.testing.assert_close(run(parts=False), run(parts=True), rtol=0, atol=0)


@each_name
def test_gradients_that_were_replaced_are_refused(originals, name):
    p = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = originals[name]([p], lr=0.01)
    guard_native(optimizer)
    for clear in (optimizer.zero_grad, lambda: None):
        p.pow(2).sum().backward()
        optimizer.step()
        clear()
    fresh = originals[name]([p], lr=0.01)
    guard_native(fresh)
    fresh.step()
    p.grad = None
    p.pow(2).sum().backward()
    with pytest.raises(FusedOptimizerError, match="not the tensor that torch_npu has packed"):
        fresh.step()
