import sys

import pytest
import torch
from toy import CountingBackend, Toy


@pytest.fixture(autouse=True)
def _fresh():
    """Give every test the same weights, and leave no compiled code to the next one."""
    torch.manual_seed(0)
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


@pytest.fixture
def backend():
    return CountingBackend()


@pytest.fixture
def model():
    return Toy()
