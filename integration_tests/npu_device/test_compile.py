"""torch.compile on an NPU: refused with a reason, left eager where that was asked for, or by name.

The stand-in has no code generator, as torch_npu before 2.13 (its own backends have names of their
own).
"""

import pytest
import torch
from torch import nn

from mm_compile import CompileError, can_compile, compile_model

pytestmark = [
    pytest.mark.needs_device,
    # Of torch, about its own code, when inductor is imported.
    pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning"),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, images):
        return self.layers(images)


@pytest.fixture
def net():
    return Net().to("npu")


@pytest.fixture
def images():
    return torch.ones(3, 4, device="npu")


def test_the_preflight_says_that_there_is_no_code_for_it():
    found = can_compile({}, "npu")
    assert not found.ok
    assert "writes no code for npu" in found.reason
    assert "aot_eager" in found.reason
    assert can_compile({"backend": "aot_eager"}, "npu").ok


def test_compiling_is_refused_in_one_sentence(net, images):
    compile_model(net, {"backend": "inductor"})
    with pytest.raises(CompileError, match="npu"):
        net(images)


def test_eager_is_taken_where_it_was_asked_for(net, images):
    expected = net(images)
    handle = compile_model(net, {"on_error": "eager"})
    torch.testing.assert_close(net(images), expected)
    assert "npu" in str(handle.report())


def test_a_backend_by_name_compiles_forward_and_backward(net, images):
    expected = net(images)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    handle = compile_model(net, {"backend": "aot_eager"})
    found = net(images)
    found.sum().backward()
    torch.testing.assert_close(found, expected)
    for p, gradient in zip(net.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient)
    assert handle.report()
