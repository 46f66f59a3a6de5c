"""What torch's reducer complains of, in the user's words."""

import os
import time

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mm_dist import GradientSyncError, MMDistributedDataParallel

_INPUTS = torch.ones(2, 3)


class Net(nn.Module):
    """Its second head may be left out, its body checkpointed more than once."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.body = nn.Linear(3, 3)
        self.head = nn.ModuleDict({"used": nn.Linear(3, 1), "unused": nn.Linear(3, 1)})
        self.frozen = nn.Linear(3, 1).requires_grad_(False)  # noqa: FBT003
        self.uses_both = False
        self.returns_both = False
        self.num_checkpoints = 0

    def data_preprocessor(self, data, training):  # noqa: ARG002
        return {"inputs": data}

    def forward(self, inputs, mode="loss"):  # noqa: ARG002
        values = self.body(self.stem(inputs))
        for _ in range(self.num_checkpoints):
            values = checkpoint(self.body, values, use_reentrant=True)
        loss = self.head["used"](values).sum()
        if self.uses_both:
            loss = loss + self.head["unused"](values).sum()
        if self.returns_both:
            return {"loss": loss, "other": self.head["unused"](values)}
        return {"loss": loss}

    def parse_losses(self, losses):
        return losses["loss"], losses


class Optim:
    def __init__(self):
        self.num_updates = 0

    def optim_context(self, model):
        return model.no_sync() if self.num_updates else torch.enable_grad()

    def update_params(self, loss):
        loss.backward()


def _step_twice(model):
    for _ in range(2):  # torch notices it in the second step
        model.train_step(_INPUTS, Optim())


def _expect_rank_named(rank):
    net = Net()
    net.uses_both = rank == 0
    model = MMDistributedDataParallel(net)
    if rank == 1:
        with pytest.raises(GradientSyncError) as caught:
            _step_twice(model)
        message = str(caught.value)
        assert message.startswith("Rank 1: in the last backward no gradient reached head.unused.")
        time.sleep(0.05)  # gloo's threads, as in conftest
        os._exit(0)  # what a launcher does with a rank that raised
    # The other rank waits for that gradient, until the first has gone.
    with pytest.raises(RuntimeError):
        _step_twice(model)
    os._exit(0)


def test_branch_used_on_one_rank_only_is_named_by_the_other(run_ranks):
    run_ranks(_expect_rank_named, 2)


@pytest.mark.usefixtures("group_of_one")
def test_unused_parameters_are_named_with_the_remedies():
    model = MMDistributedDataParallel(Net())
    model(_INPUTS)["loss"].backward()
    with pytest.raises(GradientSyncError) as caught:
        model(_INPUTS)
    assert caught.value.parameter_names == ("head.unused.weight", "head.unused.bias")
    message = str(caught.value)
    assert "Rank 0: in the last backward no gradient reached head.unused.weight" in message
    for remedy in ("requires_grad=False", "find_unused_parameters=True", "static_graph=True"):
        assert remedy in message
    assert "Expected to have finished reduction" in str(caught.value.__cause__)


@pytest.mark.usefixtures("group_of_one")
def test_accumulating_train_step_reports_nothing():
    model = MMDistributedDataParallel(Net())
    optim = Optim()
    optim.num_updates = 1
    for _ in range(2):
        model.train_step(_INPUTS, optim)


@pytest.mark.parametrize("option", ["find_unused_parameters", "static_graph"])
@pytest.mark.usefixtures("group_of_one")
def test_each_remedy_helps(option):
    model = MMDistributedDataParallel(Net(), **{option: True})
    for _ in range(3):
        assert "loss" in model.train_step(_INPUTS, Optim())


@pytest.mark.usefixtures("group_of_one")
def test_output_that_the_loss_leaves_out_is_told_from_an_unused_parameter():
    net = Net()
    net.returns_both = True
    model = MMDistributedDataParallel(net)
    model(_INPUTS)["loss"].backward()
    with pytest.raises(GradientSyncError, match=r"reached head\.unused\.weight"):
        model(_INPUTS)


@pytest.mark.usefixtures("group_of_one")
def test_static_graph_that_changes_is_explained():
    net = Net()
    net.uses_both = True
    model = MMDistributedDataParallel(net, static_graph=True)
    for _ in range(2):
        model(_INPUTS)["loss"].backward()
    net.uses_both = False
    model(_INPUTS)["loss"].backward()
    with pytest.raises(GradientSyncError, match="static_graph=True promises") as caught:
        model(_INPUTS)
    assert "head.unused.weight" in caught.value.parameter_names
    assert "find_unused_parameters=True instead" in str(caught.value)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.filterwarnings("ignore::FutureWarning:torch.utils.checkpoint")  # torch 2.4's own
def test_gradient_computed_twice_is_explained():
    net = Net()
    net.num_checkpoints = 2
    net.uses_both = True
    model = MMDistributedDataParallel(net)
    with pytest.raises(GradientSyncError, match=r"Rank 0: the gradient of body\.") as caught:
        model.train_step(_INPUTS, Optim())
    assert "use_reentrant=False" in str(caught.value)
    assert "static_graph=True" in str(caught.value)
    assert all(name.startswith("body.") for name in caught.value.parameter_names)


@pytest.mark.usefixtures("group_of_one")
def test_other_errors_pass_as_they_are():
    class Broken(Net):
        def forward(self, inputs, mode="loss"):  # noqa: ARG002
            raise RuntimeError("no luck")

    model = MMDistributedDataParallel(Broken())
    with pytest.raises(RuntimeError, match="no luck") as caught:
        model(_INPUTS)
    assert not isinstance(caught.value, GradientSyncError)
    with pytest.raises(RuntimeError, match="no luck"):
        model.train_step(_INPUTS, Optim())
