"""Wrappers are copied and pickled together with what they train."""

import copy
import pickle

import pytest
import torch
from conftest import needs_cpu_float16, train_step

from mm_amp import AmpOptimWrapper


def _pickle(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own


COPIES = pytest.mark.parametrize("make_copy", [copy.deepcopy, _pickle], ids=["copy", "pickle"])


def _adam(model, **options):
    return torch.optim.Adam(model.parameters(), lr=0.01, **options)


@COPIES
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(
            lambda model: AmpOptimWrapper(_adam(model), dtype="bfloat16", fp32_modules=["2"]),
            id="islands",
        ),
        pytest.param(
            lambda model: AmpOptimWrapper(
                _adam(model, fused=True), 64.0, "float16", accumulative_counts=2
            ),
            id="float16, fused, accumulating",
            marks=needs_cpu_float16,
        ),
    ],
)
def test_copy_of_model_and_wrapper_trains_on_alike(model, batches, build, make_copy):
    wrapper = build(model)
    for batch in batches[:3]:
        train_step(wrapper, model, batch)
    make_copy(wrapper)  # also within a window, though torch copies no gradients
    train_step(wrapper, model, batches[3])
    twin, other = make_copy((model, wrapper))
    for batch in batches[4:6]:
        train_step(wrapper, model, batch)
        train_step(other, twin, batch)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)
    assert other.inner_count == 6
