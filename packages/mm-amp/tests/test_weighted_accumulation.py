import copy

import pytest
import torch
from torch import nn

from mm_amp import ConfigError, OptimWrapper

_SIZES = [3, 1, 4, 2, 5]


@pytest.fixture
def ragged(batches):
    """Five micro-batches of 3, 1, 4, 2 and 5 samples."""
    return [(x[:n], y[:n]) for n, (x, y) in zip(_SIZES, batches, strict=False)]


def _step(wrapper, model, batch, weight):
    with wrapper.optim_context(model):
        loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1])
    return wrapper.update_params(loss, weight=weight)


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_a_micro_batch_of_weight_zero_counts_nothing(model, ragged, as_tensor):
    twin = copy.deepcopy(model)
    wrapper, other = (
        OptimWrapper(torch.optim.SGD(one.parameters(), lr=0.1), accumulative_counts=counts)
        for one, counts in ((model, 3), (twin, 2))
    )
    for index, batch in enumerate(ragged[:3]):
        weight = len(batch[0]) if index else 0
        _step(wrapper, model, batch, torch.tensor(weight) if as_tensor else weight)
        if index:
            _step(other, twin, batch, weight)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("window", [1, 2])
def test_a_mean_over_nothing_is_no_bad_loss(window, as_tensor):
    """All labels are padding: cross entropy is NaN then, though its gradients are 0."""
    model = nn.Linear(4, 3)
    start = copy.deepcopy(model.state_dict())
    wrapper = OptimWrapper(
        torch.optim.SGD(model.parameters(), lr=0.1), accumulative_counts=window, max_skips=1
    )
    for _ in range(window):
        loss = nn.functional.cross_entropy(
            model(torch.ones(2, 4)), torch.tensor([-100, -100]), ignore_index=-100
        )
        assert bool(loss.isnan())
        result = wrapper.update_params(loss, weight=torch.tensor(0) if as_tensor else 0)
    assert bool(result.stepped)
    torch.testing.assert_close(model.state_dict(), start, rtol=0, atol=0)


@pytest.mark.parametrize(("first", "second"), [(1, None), (None, 1)])
def test_mixing_weighted_and_unweighted_calls_is_an_error(model, sgd, ragged, first, second):
    wrapper = OptimWrapper(sgd, accumulative_counts=2)
    _step(wrapper, model, ragged[0], first)
    with pytest.raises(ConfigError, match="give a weight in every call"):
        _step(wrapper, model, ragged[1], second)
    assert wrapper.inner_count == 1
    wrapper.initialize_count_status(model, 0, 2)  # another run may do it the other way
    _step(wrapper, model, ragged[1], second)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-1, "weight is -1; it must be finite and at least 0"),
        (float("nan"), "weight is nan"),
        (float("inf"), "weight is inf"),
        (True, "weight is True"),
        ("3", "weight is '3'"),
        (torch.ones(2), r"weight has shape \(2,\)"),
    ],
    ids=str,
)
def test_wrong_weight_is_named(model, sgd, ragged, weight, message):
    wrapper = OptimWrapper(sgd)
    with pytest.raises(ConfigError, match=message):
        _step(wrapper, model, ragged[0], weight)
    assert wrapper.inner_count == 0
