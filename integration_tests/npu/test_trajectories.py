import copy
import inspect

import pytest
import torch
from formulas import CASE_IDS, EACH_CASE, RULES, make_groups, make_start
from trajectories import SEEDS, compare, error, make_params, num_steps_of, train

import mm_npu

pytestmark = [
    pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning"),
    # Of torch, about torch_npu's code.
    pytest.mark.filterwarnings("ignore:This overload of add_ is deprecated:UserWarning"),
]
each_case = pytest.mark.parametrize(("name", "options"), EACH_CASE, ids=CASE_IDS)
each_name = pytest.mark.parametrize("name", sorted(RULES))
# Options with which each keeps every kind of state that it has.
OPTIONS = {
    "NpuFusedAdam": {"amsgrad": True},
    "NpuFusedAdamW": {"amsgrad": True},
    "NpuFusedBertAdam": {"lr": 0.01},
    "NpuFusedRMSprop": {"momentum": 0.9, "centered": True, "eps": 1e-3},
    "NpuFusedRMSpropTF": {"momentum": 0.9, "centered": True, "eps": 1e-3},
    "NpuFusedSGD": {"lr": 0.01, "momentum": 0.9},
}


@each_case
@pytest.mark.parametrize("seed", SEEDS)
def test_ours_follow_torch_npus(originals, name, options, seed):
    num_steps = num_steps_of(options)
    if num_steps is None:
        with pytest.raises(AttributeError, match="get_optimizer_combined_grads"):
            compare(originals, name, options, seed, 2)
    else:
        assert compare(originals, name, options, seed, num_steps) < 1e-5


@each_name
def test_the_constructors_take_the_same(originals, name):
    def describe(cls):
        parameters = inspect.signature(cls.__init__).parameters.values()
        return [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    ours = describe(getattr(mm_npu, name))
    theirs = [
        (key, inspect.Parameter.empty if type(value).__name__.startswith("_Required") else value)
        for key, value in describe(originals[name])
    ]
    assert ours == theirs


def make(classes, name, params):
    return classes[name](make_groups(params), **OPTIONS.get(name, {}))


@each_name
def test_a_state_goes_there_and_back_bit_by_bit(originals, name):
    ours = {name: getattr(mm_npu, name)}
    params = make_params(make_start())
    optimizer = make(originals, name, params)
    train(optimizer, params, range(1, 6), seed=0)
    theirs = copy.deepcopy(optimizer.state_dict())
    portable = make(ours, name, make_params(make_start()))
    portable.load_state_dict(copy.deepcopy(theirs))
    back = portable.state_dict()
    # "differentiable" and the like, which torch adds to every group, torch_npu ignores.
    groups = [
        {key: group[key] for key in back["param_groups"][0]} for group in theirs["param_groups"]
    ]
    assert_equal(back, {"state": theirs["state"], "param_groups": groups})
    again = make(originals, name, make_params(make_start()))
    again.load_state_dict(copy.deepcopy(back))
    assert_equal(again.state_dict()["state"], theirs["state"])


@each_name
@pytest.mark.parametrize("direction", ["from torch_npu", "to torch_npu"])
def test_training_goes_on_from_the_others_state(originals, name, direction):
    ours = {name: getattr(mm_npu, name)}
    first, second = (originals, ours) if direction == "from torch_npu" else (ours, originals)
    params = make_params(make_start())
    optimizer = make(first, name, params)
    train(optimizer, params, range(1, 6), seed=0)
    resumed_params = make_params([p.detach() for p in params])
    resumed = make(second, name, resumed_params)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, params, range(6, 16), seed=0)
    train(resumed, resumed_params, range(6, 16), seed=0)
    assert error([p.detach() for p in resumed_params], [p.detach() for p in params]) < 1e-5


def assert_equal(ours, theirs):
    """Compare nested dicts, lists and tensors, without any tolerance."""
    assert type(ours) is type(theirs) or isinstance(ours, (dict, list))
    if isinstance(ours, dict):
        assert set(ours) == set(theirs)
        for key, value in ours.items():
            assert_equal(value, theirs[key])
    elif isinstance(ours, list):
        for own, other in zip(ours, theirs, strict=True):
            assert_equal(own, other)
    elif isinstance(ours, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    else:
        assert ours == theirs
