"""The guard against gradients that the wrapper would not average. A group of one shows them all."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mm_dist import ArgumentTypeError, GradientSyncError, MMDistError, MMDistributedDataParallel

pytestmark = pytest.mark.usefixtures("group_of_one")
_INPUTS = torch.ones(2, 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)

    def forward(self, inputs):
        return self.head(self.backbone(inputs)).sum()


def _wrap(module=None, **options):
    return MMDistributedDataParallel(Net() if module is None else module, **options)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda net: net(_INPUTS), "head.bias"),
        (lambda net: net.backbone(_INPUTS).sum(), "backbone.2.bias"),
        (lambda net: net.backbone[2](torch.ones(1, 4)).sum(), "backbone.2.bias"),
    ],
    ids=["module", "child", "part of a child"],
)
def test_backward_around_a_wrapper_that_was_never_called_raises(call, name):
    model = _wrap()
    loss = call(model.module)
    with pytest.raises(GradientSyncError, match=f"reached {name} in a backward pass") as caught:
        loss.backward()
    assert caught.value.parameter_names == (name,)
    assert isinstance(caught.value, MMDistError)
    assert isinstance(caught.value, RuntimeError)
    assert "Call the wrapper itself" in str(caught.value)


@pytest.mark.parametrize("static_graph", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda net: net(_INPUTS),
        lambda net: net.backbone(_INPUTS).sum(),
        lambda net: net.head(torch.ones(1, 4)).sum(),
    ],
    ids=["module", "first child", "second child"],
)
def test_backward_around_a_wrapper_raises_between_good_steps(call, static_graph):
    model = _wrap(static_graph=static_graph)
    for _ in range(3):
        model(_INPUTS).backward()
    with pytest.raises(GradientSyncError, match="no forward of the MMDistributedDataParallel"):
        call(model.module).backward()
    model(_INPUTS).backward()


def test_second_backward_of_one_forward_raises():
    model = _wrap()
    loss = model(_INPUTS)
    loss.backward(retain_graph=True)
    with pytest.raises(GradientSyncError, match="backward ran twice after one forward"):
        loss.backward()
    first, second = model(_INPUTS), model(_INPUTS)
    first.backward()
    with pytest.raises(GradientSyncError, match="backward ran twice after one forward"):
        second.backward()


def test_backward_after_several_forwards_is_fine():
    model = _wrap()
    for _ in range(2):
        (model(_INPUTS) + model(2 * _INPUTS)).backward()
    model(_INPUTS)  # its gradients are not wanted
    (model(_INPUTS) + model.module.backbone(_INPUTS).sum()).backward()


def _train(model, num_steps):
    for _ in range(num_steps):
        model(_INPUTS).backward()


def _num_watched(model):
    return sum(bool(parameter._backward_hooks) for parameter in model.parameters())


def test_the_first_steps_are_watched():
    model = _wrap()
    watched = []
    for _ in range(20):
        _train(model, 1)
        watched.append(_num_watched(model))
    assert watched == [len(list(model.parameters()))] * 16 + [0] * 4
    # The engine looks for hooks in an empty dict, too.
    assert all(parameter._backward_hooks is None for parameter in model.parameters())


def test_every_step_can_be_watched():
    model = _wrap(check_forward="always")
    for _ in range(40):
        _train(model, 1)
        assert _num_watched(model) >= 2
    with pytest.raises(GradientSyncError):
        model.module(_INPUTS).backward()


@pytest.mark.parametrize("check_forward", ["sometimes", 1, None])
def test_unknown_extent_of_the_guard_is_an_error(check_forward):
    with pytest.raises(ArgumentTypeError, match=r'give True .*"always", or False'):
        _wrap(check_forward=check_forward)


def test_hooks_of_others_stay():
    model = _wrap()
    seen = []
    bias = model.module.head.bias
    bias.register_hook(lambda gradient: seen.append(gradient.item()))
    _train(model, 60)
    assert len(seen) == 60
    assert len(bias._backward_hooks) in (1, 2)


def test_evaluation_around_the_wrapper_is_fine():
    model = _wrap(check_forward="always")
    for _ in range(20):
        model.module(_INPUTS)
        with torch.no_grad():
            model(_INPUTS)
            model.module(_INPUTS)
        gradients = torch.autograd.grad(model.module(_INPUTS), model.module.head.parameters())
        assert len(gradients) == 2
        model(_INPUTS).backward()


def test_gradients_may_stay_local_under_no_sync():
    model = _wrap()
    with model.no_sync():
        model.module(_INPUTS).backward()
    with model.no_sync():
        loss = model(_INPUTS)
    loss.backward()  # MMEngine leaves the context before backward
    with model.no_sync():
        for _ in range(3):
            model(_INPUTS).backward()
            model.module(_INPUTS).backward()
    model(_INPUTS).backward()
    with pytest.raises(GradientSyncError):
        model.module(_INPUTS).backward()


def test_gradients_may_stay_local_by_argument():
    model = _wrap(check_forward=False)
    for _ in range(2):
        model.module(_INPUTS).backward()
        model(_INPUTS).backward()


def test_frozen_parameters_are_fine():
    net = Net()
    net.backbone.requires_grad_(False)  # noqa: FBT003
    model = _wrap(net)
    for _ in range(2):
        model(_INPUTS).backward()
    model.module.head.requires_grad_(False)  # noqa: FBT003
    inputs = _INPUTS.clone().requires_grad_()
    model.module(inputs).backward()  # an adversary's step: no parameter gets a gradient
    assert inputs.grad is not None


def test_adversarial_training_is_fine():
    generator = _wrap(nn.Linear(3, 3))
    critic = _wrap()
    for _ in range(3):
        fake = generator(_INPUTS)
        (critic(_INPUTS) - critic(fake.detach())).backward()
        critic.requires_grad_(False)  # noqa: FBT003
        critic(fake).backward()
        critic.requires_grad_(True)  # noqa: FBT003
        critic(generator(_INPUTS)).backward()  # the critic's gradients are thrown away
        for parameter in [*critic.parameters(), *generator.parameters()]:
            parameter.grad = None


def test_gradient_penalty_is_fine():
    model = _wrap()
    for _ in range(2):
        inputs = _INPUTS.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs), inputs, create_graph=True)
        (slope.square().sum() + model(inputs)).backward()


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.filterwarnings("ignore::FutureWarning:torch.utils.checkpoint")  # torch 2.4's own
def test_checkpointing_is_fine(use_reentrant):
    class Checkpointed(Net):
        def forward(self, inputs):
            values = checkpoint(self.backbone, inputs, use_reentrant=use_reentrant)
            return self.head(values).sum()

    model = _wrap(Checkpointed())
    inputs = _INPUTS.clone().requires_grad_()
    for _ in range(3):
        model(inputs).backward()


@pytest.mark.parametrize("is_used", [False, True], ids=["new", "used"])
def test_copy_of_the_wrapper_is_guarded_and_steps(is_used):
    model = _wrap(comm_hook="fp16")
    if is_used:
        model(_INPUTS).backward()
    twin = copy.deepcopy(model)
    with pytest.raises(GradientSyncError):
        twin.module(_INPUTS).backward()
    for parameter in twin.parameters():
        parameter.grad = None
    for _ in range(2):
        twin(_INPUTS).backward()
    torch.testing.assert_close(twin.module.head.bias.grad, torch.tensor([4.0]))
    assert list(twin.state_dict()) == [f"module.{name}" for name in Net().state_dict()]


def test_wrapper_is_freed_and_leaves_its_module_alone():
    net = Net()
    for is_used in (False, True):
        model = _wrap(net)
        if is_used:
            model(_INPUTS).backward()
        reference = weakref.ref(model)
        del model
        gc.collect()
        assert reference() is None
        net(_INPUTS).backward()


@pytest.mark.skipif(
    not hasattr(torch, "compile"), reason="torch 1.13 counts forward passes, not backward passes"
)
def test_a_static_graph_is_learned_late_too(caplog):
    model = _wrap(static_graph=True)
    for _ in range(100):  # without a backward, torch learns nothing from them
        model(_INPUTS)
    with caplog.at_level("INFO", "mm_dist"), model.no_sync():
        model(_INPUTS).backward()
    assert "averaged although they accumulate" in caplog.text
    model(_INPUTS).backward()
    assert torch.equal(model.module.head.bias.grad, torch.tensor([4.0]))
