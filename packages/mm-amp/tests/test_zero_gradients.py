"""Gradients are zeroed as the optimizer would, whoever else wants to know of it."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from mm_amp import OptimWrapper


def update(wrapper, loss):
    wrapper.update_params(loss)


def update_part_by_part(wrapper, loss):
    wrapper.backward(loss)
    wrapper.step()
    wrapper.zero_grad()


each_way = pytest.mark.parametrize("run", [update, update_part_by_part])


def make(optimizer_type=torch.optim.SGD):
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.5}]
    return parameters, OptimWrapper(optimizer_type(groups, lr=1.0))


@each_way
def test_what_is_left_of_gradients_is_what_torch_leaves(run):
    ours, wrapper = make()
    theirs, other = make()
    loss = (ours[0] + 2 * ours[1]).sum()  # the last one has no gradient
    run(wrapper, loss)
    (theirs[0] + 2 * theirs[1]).sum().backward()
    other.optimizer.step()
    other.optimizer.zero_grad()
    for own, by_torch in zip(ours, theirs, strict=True):
        assert torch.equal(own, by_torch)
        assert (own.grad is None) is (by_torch.grad is None)
        assert own.grad is None or not own.grad.any()


@each_way
def test_an_optimizers_own_way_is_taken(run):
    done = []

    class Noting(torch.optim.SGD):
        def zero_grad(self, *args, **kwargs):
            done.append(type(self).__name__)
            super().zero_grad(*args, **kwargs)

    parameters, wrapper = make(Noting)
    run(wrapper, parameters[0].sum())
    assert done == ["Noting"]


@each_way
def test_what_was_put_on_the_optimizer_is_called(run):
    parameters, wrapper = make()
    done, own = [], wrapper.optimizer.zero_grad
    wrapper.optimizer.zero_grad = lambda: done.append("called") or own()
    run(wrapper, parameters[0].sum())
    assert done == ["called"]


@each_way
def test_what_was_put_on_torchs_class_is_called(run, monkeypatch):
    done, own = [], torch.optim.Optimizer.zero_grad
    monkeypatch.setattr(
        torch.optim.Optimizer, "zero_grad", lambda self: done.append("called") or own(self)
    )
    parameters, wrapper = make()
    run(wrapper, parameters[0].sum())
    assert done == ["called"]


@each_way
def test_a_profiler_sees_it(run):
    parameters, wrapper = make()
    with torch.autograd.profiler.profile() as profile:
        run(wrapper, parameters[0].sum())
    assert "Optimizer.zero_grad#SGD.zero_grad" in {event.key for event in profile.key_averages()}


def test_a_profiler_of_all_threads_sees_it():
    try:
        config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except (AttributeError, TypeError):
        pytest.skip("this torch profiles one thread")
    parameters, wrapper = make()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=config
    ) as profile:
        wrapper.update_params(parameters[0].sum())
    assert "Optimizer.zero_grad#SGD.zero_grad" in {event.key for event in profile.key_averages()}


def test_what_was_put_on_torchs_class_before_the_import_is_called():
    program = """
import torch
done, own = [], torch.optim.Optimizer.zero_grad
torch.optim.Optimizer.zero_grad = lambda self, *a, **k: done.append("called") or own(self, *a, **k)
from mm_amp import OptimWrapper
parameter = torch.nn.Parameter(torch.ones(2))
OptimWrapper(torch.optim.SGD([parameter], lr=1.0)).update_params(parameter.sum())
print(done)
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert told.stdout == "['called']\n", told.stderr
