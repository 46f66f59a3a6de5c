import copy

import pytest
import torch
from conftest import needs_cpu_float16, train_step
from torch import nn

from mm_amp import (
    AmpOptimWrapper,
    ConfigError,
    ConfigTypeError,
    MMAmpError,
    OptimWrapper,
    OptimWrapperDict,
)


@pytest.fixture
def pair():
    torch.manual_seed(0)
    return nn.Linear(4, 4), nn.Linear(4, 1)


@pytest.fixture
def wrappers(pair):
    generator, critic = pair
    return OptimWrapperDict(
        generator=OptimWrapper(torch.optim.Adam(generator.parameters(), lr=0.1)),
        critic=OptimWrapper(torch.optim.SGD(critic.parameters(), lr=0.2, momentum=0.5)),
    )


def test_it_is_read_like_a_dict(wrappers):
    assert list(wrappers) == list(wrappers.keys()) == ["generator", "critic"]
    assert list(wrappers.values()) == [wrappers["generator"], wrappers["critic"]]
    assert dict(wrappers.items())["critic"] is wrappers["critic"]
    assert len(wrappers) == 2
    assert "critic" in wrappers
    assert "judge" not in wrappers
    with pytest.raises(KeyError, match=r"named 'critc'.*did you mean 'critic'"):
        wrappers["critc"]


def test_settings_are_listed_under_the_names(wrappers):
    assert wrappers.get_lr() == {"generator.lr": [0.1], "critic.lr": [0.2]}
    assert wrappers.get_momentum() == {"generator.momentum": [0.9], "critic.momentum": [0.5]}
    assert wrappers.param_groups["critic"] is wrappers["critic"].optimizer.param_groups
    assert repr(wrappers).startswith("OptimWrapperDict(\n  generator=OptimWrapper(")


@pytest.mark.parametrize("name", ["update_params", "backward", "optim_context"])
def test_what_concerns_one_is_refused(wrappers, name):
    with pytest.raises(MMAmpError, match=rf"optim_wrapper\['generator'\]\.{name}") as error:
        getattr(wrappers, name)(torch.ones(()))
    assert isinstance(error.value, NotImplementedError)  # as in MMEngine


def test_state_continues_a_run(pair, wrappers, batches):
    generator, critic = pair
    for name, module in [("critic", critic), ("generator", nn.Sequential(generator, critic))]:
        train_step(wrappers[name], module, batches[0])
    state = copy.deepcopy(wrappers.state_dict())
    other = OptimWrapperDict(
        generator=OptimWrapper(torch.optim.Adam(generator.parameters(), lr=1.0)),
        critic=OptimWrapper(torch.optim.SGD(critic.parameters(), lr=1.0, momentum=0.5)),
    )
    names = list(state["critic"])
    other.load_state_dict(state)
    assert list(state["critic"]) == names
    torch.testing.assert_close(other.state_dict(), wrappers.state_dict(), rtol=0, atol=0)
    assert other.get_lr() == wrappers.get_lr()


def test_state_of_other_names_is_refused_and_nothing_loaded(wrappers):
    state = {"generator": {}, "judge": {}}
    with pytest.raises(ConfigError, match=r"is of generator, judge.*are generator, critic"):
        wrappers.load_state_dict(state)


def test_only_wrappers_are_taken(sgd):
    with pytest.raises(ConfigTypeError, match="generator is a SGD"):
        OptimWrapperDict(generator=sgd)
    with pytest.raises(ConfigError, match="at least one"):
        OptimWrapperDict()


@needs_cpu_float16
def test_results_and_skips_are_those_of_all(pair, batches):
    wrappers = OptimWrapperDict(
        **{
            name: AmpOptimWrapper(torch.optim.SGD(one.parameters(), lr=0.1), 64.0, "float16")
            for name, one in zip(("generator", "critic"), pair, strict=True)
        }
    )
    assert wrappers.last_result == {"generator": None, "critic": None}
    inputs, targets = batches[0]
    infinite = (inputs, torch.full((6, 4), float("inf")))
    results = {
        "generator": train_step(wrappers["generator"], pair[0], infinite),
        "critic": train_step(wrappers["critic"], pair[1], (inputs, targets)),
    }
    assert results["critic"].stepped  # an overflow in one skips no step of another
    assert wrappers.last_result == results
    assert (wrappers.step_skipped, wrappers.num_skipped) == (True, 1)
