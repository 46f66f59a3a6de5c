import pytest
import torch
from torch import nn

from mm_compile import can_compile, compile_model

SUPPORT = can_compile()


def train(**cfg):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    handle = compile_model(model, {"measure": 2, **cfg})
    for _ in range(20):
        model(torch.randn(5, 4)).sum().backward()
    return handle, model[0].weight.grad


@pytest.mark.skipif(not SUPPORT.ok, reason=str(SUPPORT.reason))
# Its own imports warn, of another thing in every version of torch.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.usefixtures("inductor_cache")
def test_inductor_is_verified_and_timed_with_dropout():
    handle, gradient = train(verify=1)
    (region,) = handle.regions
    assert region.is_compiled
    assert (region.verified.num_calls, region.verified.note) == (1, None)
    assert region.verified.deviation <= region.verified.allowed
    report = handle.report()
    assert report.steps.eager_s > 0
    assert report.steps.compiled_s > 0
    assert report.steps.startup_s > 0.1
    assert "verified: 1 region against eager" in str(report)
    # Inductor's own random numbers are the same as without.
    _, expected = train()
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)
