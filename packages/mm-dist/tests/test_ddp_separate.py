"""A model whose children are wrapped one by one, and trained in turn."""

import copy
import logging

import pytest
import torch
from torch import nn

from mm_dist import (
    ConfigError,
    GradientSyncError,
    MMDistributedDataParallel,
    MMSeparateDistributedDataParallel,
    all_gather,
    is_model_wrapper,
)


class Gan(nn.Module):
    """Its critic, then its generator take a step; a third child does not learn."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        self.critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.teacher = nn.Linear(3, 3).requires_grad_(False)  # noqa: FBT003
        self.noise = nn.Dropout(0.0)
        self.nothing = None

    def forward(self, noise, mode=None):  # noqa: ARG002
        return self.generator(self.noise(noise))

    def train_step(self, data, optim_wrapper):
        real, fake = self.teacher(data), self(data)
        critic_loss = (self.critic(fake.detach()) - self.critic(real)).mean()
        optim_wrapper.step(critic_loss, self.critic)
        generator_loss = -self.critic(self(data)).mean()
        optim_wrapper.step(generator_loss, self.generator)
        return {"critic": critic_loss.detach(), "generator": generator_loss.detach()}

    def val_step(self, data):
        return ["val", data]

    def test_step(self, data):
        return ["test", data]


class Descent:
    """Changes the parameters of one child, and forgets the gradients of both."""

    def __init__(self, model):
        self.model = model

    def step(self, loss, child):
        loss.backward()
        with torch.no_grad():
            for parameter in child.parameters():
                parameter.sub_(0.1 * parameter.grad)
        for parameter in self.model.parameters():
            parameter.grad = None


def _batches(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2, 4, 3, generator=generator)


def _expect_gan(rank):
    reference, model = Gan(), MMSeparateDistributedDataParallel(Gan())
    for step in range(3):
        log_vars = model.train_step(_batches(step)[rank], Descent(model))
        reference.train_step(_batches(step).flatten(0, 1), Descent(reference))
        assert list(log_vars) == ["critic", "generator"]
    state = model.module.state_dict()
    assert list(state) == list(reference.state_dict())
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(state[name], value, msg=name)

    inputs = _batches(9)
    with model.no_sync():
        model(inputs[rank]).sum().backward()
    found = all_gather(model.module.generator.module[2].bias.grad + rank)
    assert not torch.equal(*found), "they were averaged"
    model(inputs[rank]).sum().backward()
    reference(inputs.flatten(0, 1)).sum().backward()
    for parameter, other in zip(
        model.module.generator.parameters(), reference.generator.parameters(), strict=True
    ):
        torch.testing.assert_close(parameter.grad, other.grad)  # twice, and half of both ranks


def test_children_trained_in_turn_take_the_steps_of_one_process(run_ranks):
    run_ranks(_expect_gan, 2)


@pytest.mark.usefixtures("group_of_one")
def test_children_that_learn_are_wrapped_in_their_place():
    net = Gan()
    net.again = net.critic
    wrapper = MMSeparateDistributedDataParallel(net, find_unused_parameters=True, comm_hook="fp16")
    assert is_model_wrapper(wrapper)
    for child in (net.generator, net.critic):
        assert isinstance(child, MMDistributedDataParallel)
        assert child.find_unused_parameters
    assert net.again is net.critic
    assert type(net.teacher) is nn.Linear
    assert type(net.noise) is nn.Dropout
    assert wrapper.val_step(1) == ["val", 1]
    assert wrapper.test_step(2) == ["test", 2]
    wrapper.eval()
    assert not net.critic.module.training
    MMSeparateDistributedDataParallel(net)  # what is wrapped already stays
    assert isinstance(net.critic.module, nn.Sequential)


@pytest.mark.usefixtures("group_of_one")
def test_a_child_that_was_frozen_when_it_was_wrapped_is_not_trained_unaveraged():
    model = MMSeparateDistributedDataParallel(Gan())
    model.module.teacher.requires_grad_()
    with pytest.raises(GradientSyncError, match=r"teacher\.weight, teacher\.bias was frozen"):
        model.train_step(_batches(0)[0], Descent(model))


@pytest.mark.usefixtures("group_of_one")
def test_state_has_the_names_of_the_module():
    plain = Gan()
    wrapper = MMSeparateDistributedDataParallel(copy.deepcopy(plain))
    for model in (wrapper, copy.deepcopy(wrapper)):
        state = model.module.state_dict()
        assert list(state) == list(plain.state_dict())
        assert list(model.state_dict()) == [f"module.{name}" for name in plain.state_dict()]
        changed = {name: value + 1 for name, value in state.items()}
        model.module.load_state_dict(changed)
        plain.load_state_dict(model.module.state_dict())
        assert all(torch.equal(v, changed[n]) for n, v in plain.state_dict().items())
        # As MMEngine saved it.
        named = {n.replace("critic.", "critic.module."): v for n, v in state.items()}
        model.module.load_state_dict(named)
        with pytest.raises(RuntimeError, match=r"(?s)Missing key.*generator.*Unexpected.*else"):
            model.module.load_state_dict({"else.weight": state["critic.0.weight"]})


def _step_twice(model):
    for _ in range(2):  # torch notices an unused parameter in the second step
        model.train_step(torch.ones(1, 3), None)


@pytest.mark.usefixtures("group_of_one")
def test_messages_name_the_child(caplog):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(3, 1), nn.Linear(3, 1)

        def forward(self, inputs):
            return self.used(inputs).sum()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Half()

        def train_step(self, data, optim_wrapper):
            self.part(data).backward()
            return optim_wrapper

    model = MMSeparateDistributedDataParallel(Model())
    with pytest.raises(GradientSyncError, match=r"reached part\.unused\.weight, part\.unused\.bi"):
        _step_twice(model)
    caplog.set_level(logging.WARNING)
    model = MMSeparateDistributedDataParallel(
        Model(), find_unused_parameters=True, detect_anomalous_params=True
    )
    for _ in range(2):
        assert model.train_step(torch.ones(1, 3), 5) == 5
    (record,) = caplog.records
    assert "reach these parameters: part.unused.weight, part.unused.bias." in record.getMessage()


@pytest.mark.usefixtures("group_of_one")
def test_what_no_child_would_average_is_refused():
    net = Gan()
    net.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(ConfigError, match="scale of Gan belongs to no child"):
        MMSeparateDistributedDataParallel(net)
    net = Gan()
    net.critic[0].weight = net.generator[0].weight
    with pytest.raises(ConfigError, match=r"critic\.0\.weight is a parameter of generator as well"):
        MMSeparateDistributedDataParallel(net)
    assert type(net.generator) is nn.Sequential
    with pytest.raises(ConfigError, match="ReLU has no parameter that requires a gradient"):
        MMSeparateDistributedDataParallel(nn.ReLU())
    with pytest.raises(AttributeError, match="'Sequential' object has no attribute 'train_step'"):
        MMSeparateDistributedDataParallel(nn.Sequential(nn.Linear(1, 1))).train_step({}, None)
