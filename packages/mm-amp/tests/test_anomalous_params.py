import logging
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mm_amp import ConfigError, detect_anomalous_params


class _Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.idle = nn.Linear(4, 2)
        self.cut = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)

    def forward(self, inputs):
        return self.frozen(self.used(inputs)) + self.cut(inputs).detach()


def test_parameters_outside_the_graph_are_named_once_in_the_log(caplog):
    model = _Branches()
    loss = model(torch.ones(2, 4)).sum()
    found = detect_anomalous_params(loss, model)
    assert found == ["idle.weight", "idle.bias", "cut.weight", "cut.bias"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "idle.weight (2, 4), idle.bias (2,), cut.weight (4, 4)" in record.getMessage()
    loss.backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == (
        found
    )


def test_a_model_that_is_used_up_says_nothing(caplog):
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, shared, nn.Linear(4, 1))
    loss = checkpoint(model, torch.ones(2, 4), use_reentrant=False).sum()
    assert detect_anomalous_params(loss, model) == []
    assert not caplog.records


def test_a_deep_graph_is_no_problem():
    weight = nn.Parameter(torch.ones(()))
    loss = weight
    for _ in range(2 * sys.getrecursionlimit()):
        loss = loss + weight
    model = nn.Module()
    model.weight = weight
    assert detect_anomalous_params(loss, model) == []
    assert detect_anomalous_params(weight, model) == []


def test_names_are_those_without_wrappers():
    wrapped = nn.Sequential()
    wrapped.add_module("module", _Branches())
    loss = wrapped(torch.ones(2, 4)).sum()
    assert detect_anomalous_params(loss, wrapped)[0] == "idle.weight"


def test_a_loss_without_a_graph_is_an_error():
    with pytest.raises(ConfigError, match="does not require a gradient"):
        detect_anomalous_params(torch.ones(()), nn.Linear(1, 1))


def test_a_sharded_model_is_refused():
    class Sharded(nn.Linear):
        """Stands in for a module of ``fully_shard``."""

        def set_requires_gradient_sync(self, value):
            del value

    model = Sharded(1, 1)
    with pytest.raises(ConfigError, match="ask before sharding"):
        detect_anomalous_params(model(torch.ones(1, 1)).sum(), model)
