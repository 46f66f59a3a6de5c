import copy

import pytest
import torch
from torch import nn
from toy import told_of

from mm_compile import can_compile, compile_model
from mm_compile._torch import torch_version

SUPPORT = can_compile()
pytestmark = [
    pytest.mark.skipif(not SUPPORT.ok, reason=str(SUPPORT.reason)),
    # Its own imports warn, of another thing in every version of torch.
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
    pytest.mark.usefixtures("inductor_cache"),
]


def test_inductor_computes_what_eager_computes(model):
    model.drop.p = 0.0
    eager = copy.deepcopy(model)
    inputs = torch.randn(5, 4)
    handle = compile_model(model, cfg=True)
    for each in (model, eager):
        each(inputs, mode="loss")["loss"].backward()
    assert handle.report().graphs == 1
    assert handle.report().backend == "inductor"
    for compiled, reference in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(compiled.grad, reference.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model(inputs), eager(inputs), rtol=1e-5, atol=1e-5)


class Bessel(nn.Linear):
    def forward(self, inputs):
        outputs = super().forward(inputs)
        return torch.special.bessel_j1(outputs)


@pytest.mark.skipif(torch_version() < (2, 7), reason="this torch's graphs may name no lines")
@pytest.mark.parametrize("on_error", ["raise", "eager"])
def test_what_inductor_refuses_is_named_by_its_own_line_and_without_its_buffers(
    on_error, monkeypatch, caplog
):
    from torch._inductor.lowering import lowerings  # noqa: PLC0415 - imports inductor

    def refuse(*_args, **_keywords):
        raise NotImplementedError("no kernel for this")

    monkeypatch.setitem(lowerings, torch.ops.aten.special_bessel_j1.default, refuse)
    model = Bessel(4, 4).requires_grad_(requires_grad=False)
    compile_model(model, {"on_error": on_error})
    message = told_of(lambda: model(torch.randn(2, 4)), caplog)
    line = Bessel.forward.__code__.co_firstlineno + 2
    assert f"(at {__file__}:{line})" in message
    assert "no kernel for this" in message
    assert "args[0]" not in message
