"""Torch's schedulers and optimizer hooks take the wrapper as they take its optimizer."""

import copy

import pytest
import torch
from conftest import train_step
from torch.optim import lr_scheduler

from mm_amp import AmpOptimWrapper, ConfigTypeError, OptimWrapper


def _sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


SCHEDULERS = {
    "step": lambda one: lr_scheduler.StepLR(one, 2, gamma=0.5),
    "one cycle": lambda one: lr_scheduler.OneCycleLR(one, max_lr=0.2, total_steps=10),
    "plateau": lambda one: lr_scheduler.ReduceLROnPlateau(one, patience=0),
    "chain": lambda one: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(one, 0.1, total_iters=2), lr_scheduler.ExponentialLR(one, 0.9)]
    ),
}


@pytest.mark.parametrize("build", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("counts", [1, 2])
def test_scheduler_of_the_wrapper_equals_one_of_its_optimizer(model, batches, build, counts):
    twin = copy.deepcopy(model)
    found = []
    for one, is_given_wrapper in ((model, True), (twin, False)):
        wrapper = OptimWrapper(_sgd(one), counts)
        scheduler = build(wrapper if is_given_wrapper else wrapper.optimizer)
        lrs = []
        for batch in batches[:6]:
            train_step(wrapper, one, batch)
            if wrapper.last_result.stepped:
                is_plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
                scheduler.step(*[1.0] * is_plateau)
            lrs.append(wrapper.get_lr()["lr"])
        found.append(lrs)
    assert found[0] == found[1]
    assert found[0][0] != found[0][-1]
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)


def test_wrapper_shows_the_optimizers_own_groups_and_state(model, batches):
    wrapper = AmpOptimWrapper(_sgd(model), dtype="bfloat16")
    train_step(wrapper, model, batches[0])
    assert isinstance(wrapper, torch.optim.Optimizer)
    wrapper.load_state_dict(wrapper.state_dict())  # which replaces both in the optimizer
    assert wrapper.param_groups is wrapper.optimizer.param_groups
    assert wrapper.state is wrapper.optimizer.state
    wrapper.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.5})
    assert wrapper.get_lr() == {"lr": [0.1, 0.5]}


@pytest.mark.skipif(
    not hasattr(torch.optim.Optimizer, "register_step_post_hook"), reason="torch 2.0 has hooks"
)
def test_step_hooks_are_called_once_a_step(model, batches):
    wrapper, calls = OptimWrapper(_sgd(model), 2), []
    handle = wrapper.register_step_post_hook(lambda *_: calls.append("after"))
    wrapper.register_step_pre_hook(lambda *_: calls.append("before"))
    for batch in batches[:4]:
        train_step(wrapper, model, batch)
    assert calls == ["before", "after"] * 2
    handle.remove()
    for batch in batches[4:6]:
        train_step(wrapper, model, batch)
    assert calls == [*["before", "after"] * 2, "before"]


def test_wrapper_in_a_wrapper_is_refused(model):
    with pytest.raises(ConfigTypeError, match="optimizer is OptimWrapper; it must be"):
        AmpOptimWrapper(OptimWrapper(_sgd(model)))
