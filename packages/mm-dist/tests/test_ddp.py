import contextlib
import warnings
from collections import UserDict

import pytest
import torch
from torch import nn

from mm_dist import (
    ArgumentTypeError,
    ConfigError,
    GradientSyncError,
    LaunchError,
    MMDistributedDataParallel,
    all_gather,
)


class Net(nn.Module):
    def __init__(self, make_batch=dict):
        super().__init__()
        torch.manual_seed(0)
        self.used = nn.Linear(2, 1)
        self.head = nn.Linear(2, 1)
        self.register_buffer("steps", torch.zeros(1))
        self.make_batch = make_batch

    def data_preprocessor(self, data, training):
        assert training is True
        return self.make_batch(data)

    def forward(self, inputs, mode):
        assert mode == "loss"
        return {"loss": self.used(inputs).square().mean()}

    def parse_losses(self, losses):
        assert not torch.is_autocast_enabled()
        return losses["loss"], {"loss": losses["loss"].detach()}

    def val_step(self, data):
        return ["val", data]

    def test_step(self, data):
        return ["test", data]


class Optim:
    """A stand-in for an optimizer wrapper, as small as the protocol."""

    def __init__(self, model):
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.is_in_context = False

    @contextlib.contextmanager
    def optim_context(self, model):
        assert isinstance(model, MMDistributedDataParallel)
        self.is_in_context = True
        yield
        self.is_in_context = False

    def update_params(self, loss):
        assert not self.is_in_context, "backward ran inside the context"
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def _expect_training(rank):
    net = Net()
    net.head.requires_grad_(False)  # noqa: FBT003
    reference = Net()
    net.steps += rank
    model = MMDistributedDataParallel(net, device_ids=[rank], output_device=rank)
    optim = Optim(model)
    batches = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0]])]
    log_vars = model.train_step({"inputs": batches[rank]}, optim)
    assert list(log_vars) == ["loss"]
    assert isinstance(log_vars["loss"], torch.Tensor)

    # Two ranks with one sample each take the step of one process with both samples.
    reference(torch.cat(batches), mode="loss")["loss"].backward()
    expected = reference.used.weight - 0.1 * reference.used.weight.grad
    torch.testing.assert_close(net.used.weight, expected)
    weights = all_gather(net.used.weight)
    assert torch.equal(weights[0], weights[1])
    assert net.steps.item() == 0, "buffers follow rank 0"


def test_train_step_averages_gradients_over_ranks(run_ranks):
    run_ranks(_expect_training, 2)


@pytest.mark.parametrize(
    "make_batch",
    [dict, UserDict, lambda data: [data["inputs"]], lambda data: (data["inputs"],)],
    ids=["dict", "mapping", "list", "tuple"],
)
@pytest.mark.usefixtures("group_of_one")
def test_train_step_passes_the_batch_to_forward(make_batch):
    model = MMDistributedDataParallel(Net(make_batch), find_unused_parameters=True)
    assert "loss" in model.train_step({"inputs": torch.ones(1, 2)}, Optim(model))


@pytest.mark.usefixtures("group_of_one")
def test_train_step_refuses_another_kind_of_batch():
    model = MMDistributedDataParallel(Net(lambda data: data["inputs"]))
    with pytest.raises(ArgumentTypeError, match=r"of Net returned <class 'torch\.Tensor'>"):
        model.train_step({"inputs": torch.ones(1, 2)}, Optim(model))


@pytest.mark.usefixtures("group_of_one")
def test_what_was_frozen_when_it_was_wrapped_is_not_trained_unaveraged():
    net = Net()
    net.used.bias.requires_grad_(False)  # noqa: FBT003
    net.head.requires_grad_(False)  # noqa: FBT003
    model = MMDistributedDataParallel(net)
    optim, batch = Optim(model), {"inputs": torch.ones(1, 2)}
    model.train_step(batch, optim)
    net.used.bias.requires_grad_()
    with pytest.raises(GradientSyncError, match=r"used\.bias was frozen .*freeze it afterwards"):
        model.train_step(batch, optim)


@pytest.mark.usefixtures("group_of_one")
def test_what_is_frozen_after_wrapping_may_be_trained_again():
    model = MMDistributedDataParallel(Net(), find_unused_parameters=True)
    weight, optim = model.module.used.weight, Optim(model)
    weight.requires_grad_(False)  # noqa: FBT003
    before = weight.clone()
    model.train_step({"inputs": torch.ones(1, 2)}, optim)
    assert torch.equal(weight, before)
    weight.requires_grad_()
    model.train_step({"inputs": torch.ones(1, 2)}, optim)
    assert not torch.equal(weight, before)


@pytest.mark.usefixtures("group_of_one")
def test_steps_name_the_methods_that_the_module_lacks():
    model = MMDistributedDataParallel(nn.Linear(2, 1))
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'data_preproc"):
        model.train_step({}, Optim(model))
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'val_step'"):
        model.val_step({})


@pytest.mark.usefixtures("group_of_one")
def test_evaluation_steps_are_those_of_the_module():
    model = MMDistributedDataParallel(Net())
    assert model.val_step(1) == ["val", 1]
    assert model.test_step(2) == ["test", 2]


@pytest.mark.usefixtures("group_of_one")
def test_parameters_that_the_loss_does_not_reach_are_named_once(caplog):
    model = MMDistributedDataParallel(
        Net(), detect_anomalous_params=True, find_unused_parameters=True
    )
    optim = Optim(model)
    for _ in range(3):
        model.train_step({"inputs": torch.ones(1, 2)}, optim)
    (record,) = caplog.records
    assert "did not reach these parameters: head.weight, head.bias." in record.getMessage()


@pytest.mark.usefixtures("group_of_one")
def test_broadcast_buffers_raises_no_deprecation():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = MMDistributedDataParallel(Net(), broadcast_buffers=False)
    name = "forward_sync_buffers" if hasattr(model, "forward_sync_buffers") else "broadcast_buffers"
    assert getattr(model, name) is False


@pytest.mark.usefixtures("group_of_one")
def test_wrapper_refuses_a_module_without_trainable_parameters():
    with pytest.raises(ConfigError, match="ReLU has no parameter that requires a gradient"):
        MMDistributedDataParallel(nn.ReLU())
    with pytest.raises(ArgumentTypeError, match=r"must be a torch\.nn\.Module"):
        MMDistributedDataParallel({"a": 1})


def test_wrapper_needs_a_process_group():
    with pytest.raises(LaunchError, match=r"call mm_dist\.init_dist first"):
        MMDistributedDataParallel(nn.Linear(2, 1))
