import copy
import logging

import pytest
import torch
from conftest import train_step
from torch import nn

from mm_amp import ConfigError, ConfigTypeError, OptimWrapper


def test_update_params_steps_and_zeroes(model, sgd, batches):
    before = copy.deepcopy(model.state_dict())
    wrapper = OptimWrapper(sgd)
    result = train_step(wrapper, model, batches[0])
    assert (result.stepped, result.skipped, result.grad_norm) == (True, False, None)
    assert result.loss_scale == 1.0
    assert wrapper.last_result is result
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_update_params_passes_arguments_on(model, batches):
    steps, zeroes = [], []

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None, *, word=None):
            steps.append(word)
            return super().step(closure)

        def zero_grad(self, set_to_none=True):  # noqa: FBT002
            zeroes.append(set_to_none)
            super().zero_grad(set_to_none=set_to_none)

    wrapper = OptimWrapper(Optimizer(model.parameters(), lr=0.1))
    loss = model(batches[0][0]).mean()
    wrapper.update_params(loss, step_kwargs={"word": "go"}, zero_kwargs={"set_to_none": False})
    assert (steps, zeroes) == (["go"], [False])


def test_windows_past_max_counts_start_where_the_last_one_ended(caplog):
    parameter = nn.Parameter(torch.zeros(()))
    wrapper = OptimWrapper(torch.optim.SGD([parameter], lr=1.0), accumulative_counts=3)
    wrapper.initialize_count_status(nn.Identity(), 0, 4)
    moves = []
    for _ in range(12):
        before = parameter.item()
        wrapper.update_params(-1 * parameter)
        moves.append(round(parameter.item() - before, 3))
    assert moves == [0, 0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0]
    (record,) = caplog.records
    assert "more micro-batches than max_counts=4: full windows of 3" in record.message


@pytest.mark.skipif(
    not hasattr(torch, "compile"), reason="zero_grad() sets gradients to None from torch 2.0 on"
)
def test_gradients_of_another_loss_are_warned_of_once(caplog):
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    wrappers = [
        OptimWrapper(torch.optim.SGD(one.parameters(), lr=0.1)) for one in (generator, critic)
    ]

    def train(*, zeroes):
        for _ in range(3):
            if zeroes:
                wrappers[1].zero_grad()
            fake = generator(torch.ones(4, 2))
            wrappers[1].update_params(critic(fake.detach()).mean())
            wrappers[0].update_params(-critic(generator(torch.ones(4, 2))).mean())

    train(zeroes=True)
    assert not caplog.records
    train(zeroes=False)
    (record,) = caplog.records
    assert "no backward of this wrapper made" in record.message
    assert "call zero_grad() of this wrapper before its part" in record.message


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_own_gradients_are_not_warned_of(model, sgd, batches, caplog, window, set_to_none):
    wrapper = OptimWrapper(sgd, accumulative_counts=window)
    for inputs, targets in batches[:7]:
        loss = nn.functional.mse_loss(model(inputs), targets)
        wrapper.update_params(loss, zero_kwargs={"set_to_none": set_to_none})
    for inputs, _ in batches[:7]:
        wrapper.backward(model(inputs).mean())
        if wrapper.should_update():
            wrapper.step()
            sgd.zero_grad()
    wrapper.load_state_dict(wrapper.state_dict())
    for parameter in model.parameters():  # as a run that is restored may have them
        parameter.grad = torch.zeros_like(parameter)
    train_step(wrapper, model, batches[0])
    assert not caplog.records


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(("zeroes", "by_wrapper"), [(False, False), (True, False), (True, True)])
def test_steps_past_the_wrapper_are_warned_of_once(
    model, batches, caplog, optimizer, zeroes, by_wrapper
):
    counts = 1 if by_wrapper else 3
    wrapper = OptimWrapper(getattr(torch.optim, optimizer)(model.parameters(), lr=0.1), counts)
    wrapper.backward(model(batches[0][0]).mean())
    if by_wrapper:
        wrapper.zero_grad()  # without any step: a batch that is left out
        assert not caplog.records
    for inputs, _ in batches[:8]:
        wrapper.backward(model(inputs).mean())
        wrapper.optimizer.step()
        if zeroes:
            (wrapper if by_wrapper else wrapper.optimizer).zero_grad()
    (record,) = caplog.records
    assert "stepped or zeroed by another call than its own" in record.message


def test_zeroing_within_a_window_is_warned_of_once(model, batches, caplog):
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1), accumulative_counts=3)
    wrapper.zero_grad()
    train_step(wrapper, model, batches[0])
    assert not caplog.records
    for batch in batches[1:5]:
        wrapper.zero_grad()
        train_step(wrapper, model, batch)
    (record,) = caplog.records
    assert "in the middle of an accumulation window of 3" in record.message


def test_initialize_count_status_warns_of_a_lost_window(model, sgd, caplog):
    OptimWrapper(sgd, accumulative_counts=2).initialize_count_status(model, 3, 10)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the gradients of the earlier micro-batches of this window are missing" in record.message


def test_initialize_count_status_warns_of_batch_norm(sgd, caplog):
    model = nn.Sequential(nn.BatchNorm1d(4))
    OptimWrapper(sgd).initialize_count_status(model, 0, 10)
    assert not caplog.records
    OptimWrapper(sgd, accumulative_counts=2).initialize_count_status(model, 0, 10)
    assert "BatchNorm" in caplog.text


def test_load_state_dict_takes_mmengine_format_and_leaves_it_as_it_is(sgd):
    state = {
        **sgd.state_dict(),
        "base_param_settings": {"params": torch.zeros(1), "lr": 0.1},
        "loss_scaler": {"scale": 2.0},
    }
    keys = list(state)
    OptimWrapper(sgd).load_state_dict(state)
    assert list(state) == keys


def test_load_state_dict_refuses_what_is_no_optimizer_state(model, sgd):
    with pytest.raises(ConfigError, match=r"no state and no param_groups, only 0\.weight"):
        OptimWrapper(sgd).load_state_dict(model.state_dict())
    with pytest.raises(ConfigError, match="the state is a NoneType"):
        OptimWrapper(sgd).load_state_dict(None)


@pytest.mark.parametrize("optimizer", [None, "SGD", {"type": "SGD"}])
def test_optimizer_must_be_one_of_torch(optimizer):
    with pytest.raises(TypeError, match=f"optimizer is {type(optimizer).__name__}") as error:
        OptimWrapper(optimizer)
    assert isinstance(error.value, ConfigTypeError)


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, None])
def test_accumulative_counts_must_be_a_positive_int(sgd, count):
    with pytest.raises(ConfigError, match=f"accumulative_counts is {count!r}"):
        OptimWrapper(sgd, accumulative_counts=count)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (torch.ones(3, requires_grad=True), r"shape \(3,\).*loss.mean"),
        ({"loss": 1}, "loss is a dict"),
        (torch.ones(()), "does not require a gradient"),
    ],
    ids=["vector", "dict", "detached"],
)
def test_update_params_names_what_is_wrong_with_the_loss(sgd, loss, message):
    wrapper = OptimWrapper(sgd)
    with pytest.raises(ConfigError, match=message):
        wrapper.update_params(loss)
    assert wrapper.inner_count == 0


@pytest.mark.parametrize(
    ("init_counts", "max_counts", "message"),
    [
        (-1, 3, "init_counts is -1; it must be an integer of at least 0"),
        (0, "3", "max_counts is '3'"),
    ],
)
def test_initialize_count_status_refuses_what_is_no_count(
    model, sgd, init_counts, max_counts, message
):
    wrapper = OptimWrapper(sgd, accumulative_counts=2)
    with pytest.raises(ConfigError, match=message):
        wrapper.initialize_count_status(model, init_counts, max_counts)
    assert wrapper.inner_count == 0


def test_a_subclass_decides_for_itself_when_to_step_and_how_to_scale():
    class EverySecond(OptimWrapper):
        def should_update(self):
            return self.inner_count % 2 == 0

        def scale_loss(self, loss):
            return loss / 4

    parameter = nn.Parameter(torch.zeros(()))
    wrapper = EverySecond(torch.optim.SGD([parameter], lr=1.0))
    assert [wrapper.update_params(2 * parameter).stepped for _ in range(2)] == [False, True]
    assert parameter.item() == -1
