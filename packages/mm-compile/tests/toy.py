"""A model as an engine steps it, and a backend that counts what it is handed."""

import pytest
import torch
from torch import nn

from mm_compile import CompileError, can_compile
from mm_compile._torch import torch_version

SUPPORT = can_compile({"backend": "eager"})
needs_compile = pytest.mark.skipif(not SUPPORT.ok, reason=str(SUPPORT.reason))
needs_torch_2_4 = pytest.mark.skipif(
    torch_version() < (2, 4), reason="cache, optimizer and verify need torch 2.4"
)


class Toy(nn.Module):
    """Two layers, with the methods an engine calls."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, 1)

    def forward(self, inputs, mode="tensor"):
        outputs = self.last(self.drop(torch.relu(self.first(inputs))))
        return {"loss": outputs.square().mean()} if mode == "loss" else outputs

    def train_step(self, inputs, optimizer):
        loss = self(inputs, mode="loss")["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    def val_step(self, inputs):
        return self(inputs, mode="predict")


class CountingBackend:
    """Runs graphs eagerly; counts the graphs it was given, and the calls of them."""

    def __init__(self):
        self.graphs = 0
        self.calls = 0
        self.__name__ = "counting"

    def __call__(self, graph_module, _example_inputs):
        self.graphs += 1

        def run(*args):
            self.calls += 1
            return graph_module.forward(*args)

        return run


def told_of(run, caplog):
    """Run what does not compile, and return the error or the last warning."""
    try:
        run()
    except CompileError as error:
        return str(error)
    return caplog.messages[-1]
