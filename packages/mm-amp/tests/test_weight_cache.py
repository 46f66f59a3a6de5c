"""A forward without gradients does not take them away from a later one in the same autocast."""

import threading

import pytest
import torch
from conftest import DTYPES, train_step
from torch import nn

from mm_amp import AmpOptimWrapper, _weight_cache, autocast

_METHODS = [(owner, name, vars(owner).get(name)) for owner, name in _weight_cache._SWITCHES]


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was():
    yield
    assert [(o, n, vars(o).get(n)) for o, n in _weight_cache._SWITCHES] == _METHODS


@pytest.fixture(params=["this torch", "guarded"])
def _guard(request, monkeypatch):
    """Also put the guard in place where this torch needs none."""
    if request.param == "guarded":
        monkeypatch.setattr(_weight_cache, "drops_gradients", lambda: True)


def _off_and_on_again(layer, inputs):
    torch.set_grad_enabled(False)
    layer(inputs)
    torch.set_grad_enabled(True)


def _on_inside_off(layer, inputs):
    with torch.no_grad():
        layer(inputs)
        with torch.enable_grad():
            assert layer(inputs).requires_grad


def _decorated(layer, inputs):
    torch.no_grad()(layer)(inputs)


def _within(context):
    def run(layer, inputs):
        with context():
            layer(inputs)

    return run


def _after_an_error(layer, inputs):
    def fail():
        with torch.no_grad():
            layer(inputs)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


_WITHOUT_GRADIENTS = {
    "no_grad": _within(torch.no_grad),
    "inference_mode": _within(torch.inference_mode),
    "set_grad_enabled": _within(lambda: torch.set_grad_enabled(False)),
    "off-and-on-again": _off_and_on_again,
    "on-inside-off": _on_inside_off,
    "decorated": _decorated,
    "error": _after_an_error,
}


@pytest.mark.usefixtures("_guard")
@pytest.mark.parametrize("first", list(_WITHOUT_GRADIENTS.values()), ids=list(_WITHOUT_GRADIENTS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_later_forward_has_its_gradients(dtype, first):
    layer, inputs = nn.Linear(4, 4), torch.randn(2, 4)
    with autocast("cpu", dtype):
        first(layer, inputs)
        output = layer(inputs)
    assert output.dtype == getattr(torch, dtype)
    output.float().sum().backward()
    expected = inputs.to(output.dtype).sum(dim=0).float().expand(4, 4)
    torch.testing.assert_close(layer.weight.grad, expected, rtol=2e-2, atol=2e-2)


class _Recurrent(nn.Module):
    """Runs twice without gradients before the pass that is trained, as video models do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs):
        with torch.no_grad():
            history = self.linear(self.linear(inputs))
        return self.linear(history)[:, :1]


@pytest.mark.usefixtures("_guard")
@pytest.mark.parametrize("dtype", DTYPES)
def test_wrapper_trains_a_model_with_a_forward_without_gradients(dtype):
    model = _Recurrent()
    before = model.linear.weight.detach().clone()
    # Without an overflow, whatever the random weights: torch's default scale is too large for some.
    loss_scale = {"init_scale": 64.0}
    wrapper = AmpOptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1), loss_scale, dtype)
    for _ in range(3):
        assert train_step(wrapper, model, (torch.ones(2, 4), torch.zeros(2, 1))).stepped
    assert not torch.equal(model.linear.weight, before)


@pytest.mark.usefixtures("_guard")
def test_casts_are_kept_between_forwards_with_gradients():
    layer, inputs = nn.Linear(4, 4), torch.randn(2, 4)
    with autocast("cpu", "bfloat16"):
        first, second = layer(inputs), layer(inputs)
    # One cast, used twice: its node is the same in both graphs.
    nodes = [{node for node, _ in output.grad_fn.next_functions} for output in (first, second)]
    shared = (nodes[0] & nodes[1]) - {None}
    assert any("ToCopy" in str(node) or "TBackward" in str(node) for node in shared)


@pytest.mark.usefixtures("_guard")
def test_nested_and_overlapping_blocks_leave_torch_as_it_was():
    def fail():
        off, on = autocast("cpu", enabled=False), autocast("cpu", "bfloat16")
        with autocast("cpu", "bfloat16"), off, on:
            raise ZeroDivisionError

    with autocast("cpu", "bfloat16"), pytest.raises(ZeroDivisionError):
        fail()
    entered, leave = threading.Event(), threading.Event()

    def overlap():
        with autocast("cpu", "bfloat16"):
            entered.set()
            assert leave.wait(30)

    thread = threading.Thread(target=overlap)
    with autocast("cpu", "bfloat16"):
        thread.start()
        assert entered.wait(30)
    layer, inputs = nn.Linear(4, 4), torch.randn(2, 4)
    with autocast("cpu", "bfloat16"):
        _within(torch.no_grad)(layer, inputs)
        assert layer(inputs).requires_grad
    leave.set()
    thread.join()


@pytest.mark.usefixtures("_guard")
def test_autocast_decorates_functions():
    layer = nn.Linear(4, 4)

    @autocast("cpu", "bfloat16")
    def twice(inputs):
        with torch.no_grad():
            layer(inputs)
        return layer(inputs)

    for _ in range(2):
        output = twice(torch.ones(2, 4))
        assert (output.dtype, output.requires_grad) == (torch.bfloat16, True)


def test_torch_is_asked_whether_it_drops_gradients():
    layer, inputs = nn.Linear(4, 4), torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _within(torch.no_grad)(layer, inputs)
        is_dropped = not layer(inputs).requires_grad
    assert _weight_cache.drops_gradients() == is_dropped
