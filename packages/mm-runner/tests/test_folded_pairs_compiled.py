"""``cfg['efficient_conv_bn_eval']`` in compiled models."""

import sys

import pytest
import torch
from test_folded_pairs import Head, Model, folded_twin, gradients, some_inputs
from torch import nn
from toy import needs_compile

import mm_compile

# That of torch 2.0 is interrupted by a look around.
pytestmark = [
    needs_compile,
    pytest.mark.skipif(not hasattr(torch, "compiler"), reason="torch 2.1 is needed"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not"),
]


# dynamo of torch 2.4 looks for them in the forward that calls the one of the base class.
needs_defaults = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7),
    reason="defaults in the forward of a base class need a newer dynamo",
)


class Scaled(Head):
    def forward(self, inputs, scale=None):
        hidden = torch.tanh(self.norm(self.conv(inputs)))
        return hidden if scale is None else hidden * scale


class Body(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = nn.ModuleList([kind(nn.Conv1d(4, 4, 1)) for _ in range(3)])

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs


@pytest.fixture
def _fresh():
    yield
    sys.modules["torch._dynamo"].reset()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("regions", [{}, {"regions": "auto"}], ids=["whole", "regions"])
@pytest.mark.parametrize("kind", [Head, pytest.param(Scaled, marks=needs_defaults)])
def test_they_are_compiled_once(kind, regions):
    model, folded = folded_twin(Model(Body(kind)))
    handle = mm_compile.compile_model(
        folded, {"backend": "aot_eager", "fullgraph": True, **regions}
    )
    inputs = some_inputs().requires_grad_()  # as what the later layers are given
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    first = handle.report()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert handle.report().graphs == first.graphs > 0
    assert first.graph_breaks == 0
