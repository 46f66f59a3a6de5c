"""Two layers with something between them, to be checkpointed and trained."""

# ruff: noqa: NPY002, S311 - these are the generators that models draw from
import copy
import random

import numpy as np
import torch
from torch import nn

from mm_runner.model import apply_module_settings


class Layers(nn.Module):
    """Two layers, with ``between`` applied to what lies between them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs):
        return self.last(torch.tanh(self.between(self.first(inputs))))

    def between(self, hidden):
        return hidden


def within(block, names="0"):
    """Return a model with ``block`` first, and one with modules of it checkpointed."""
    torch.manual_seed(0)
    model = nn.Sequential(block, nn.Linear(4, 4))
    other = copy.deepcopy(model)
    apply_module_settings(other, {"activation_checkpointing": names})
    return model, other


def trained(model, between=nn.Module.train, steps=3):
    """Train, and return what came of it; ``between`` is called before the backward pass."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    found = []
    for _ in range(steps):
        model.train().requires_grad_()
        optimizer.zero_grad()
        inputs = torch.randn(8, 4, requires_grad=True)
        loss = model(inputs * 1.0).square().sum()
        between(model)
        found += [random.random(), np.random.rand()]
        loss.backward()
        found += [loss.detach(), inputs.grad]
        optimizer.step()
    found += [parameter.grad for parameter in model.parameters()]
    return [*found, *model.state_dict().values(), random.random(), np.random.rand(), torch.rand(1)]


def expect_same(model, other, **options):
    """Expect the same of both models to the last bit."""
    torch.testing.assert_close(trained(other, **options), trained(model, **options), rtol=0, atol=0)


def copies_of(monkeypatch, train):
    """Return the tensors that are copied by ``train()``."""
    copied, copy_of = [], torch.Tensor.clone

    def counted(tensor, **options):
        copied.append(tensor)
        return copy_of(tensor, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", counted)
        train()
    return copied
