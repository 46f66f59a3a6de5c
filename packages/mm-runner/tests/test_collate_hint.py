"""Batches of lists, which is the default, given to models that take tensors."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toy import NO_VALIDATION, Blobs, Classifier

from mm_runner import ConfigError
from mm_runner.model import Supervised

UNSTACKED = {"dataset": Blobs(8), "batch_size": 4}


def _pairs(**options):
    blobs = Blobs(8)
    return {"dataset": TensorDataset(blobs.inputs, blobs.labels), "batch_size": 4, **options}


class TakesLists(Classifier):
    """As MMEngine's models do."""

    def forward(self, inputs, labels, mode="tensor"):
        return super().forward(torch.stack(inputs), torch.stack(labels), mode)


class HalfWay(Classifier):
    """Fails on the numbers of a batch, in its own code."""

    def forward(self, inputs, labels, mode="tensor"):
        return super().forward(torch.stack(inputs), labels.long(), mode)


class Picky(TakesLists):
    """Fails for a reason of its own."""

    def forward(self, *_, **__):
        raise TypeError("this list is too short")


@pytest.mark.parametrize(
    ("model", "loader", "message"),
    [
        (
            Supervised(nn.Linear(4, 3), nn.functional.cross_entropy),
            _pairs(),
            r"^train_dataloader\.collate_fn: Supervised failed .*linear.*pseudo_collate",
        ),
        ({"type": HalfWay}, UNSTACKED, r"HalfWay failed .*AttributeError: 'list' object has no at"),
        (
            Supervised(nn.Conv2d(1, 3, 1), nn.functional.cross_entropy),
            _pairs(collate_fn="pseudo_collate"),
            r"Supervised failed .*conv2d.*Set collate_fn='default_collate'",
        ),
    ],
    ids=["layer", "own-code", "asked-for"],
)
def test_a_module_that_fails_on_lists_is_told_what_to_set(make_runner, model, loader, message):
    runner = make_runner(model=model, train_dataloader=loader, **NO_VALIDATION)
    with pytest.raises(ConfigError, match=message):
        runner.train()


def test_models_that_take_lists_and_other_failures_are_left_alone(make_runner):
    make_runner(model={"type": TakesLists}, train_dataloader=UNSTACKED, **NO_VALIDATION).train()
    runner = make_runner(model={"type": Picky}, train_dataloader=UNSTACKED, **NO_VALIDATION)
    with pytest.raises(TypeError, match="too short"):
        runner.train()
