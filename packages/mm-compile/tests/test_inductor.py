import copy

import pytest
import torch

from mm_compile import can_compile, compile_model

SUPPORT = can_compile()


@pytest.mark.skipif(not SUPPORT.ok, reason=str(SUPPORT.reason))
# Its own imports warn, of another thing in every version of torch.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.usefixtures("inductor_cache")
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
