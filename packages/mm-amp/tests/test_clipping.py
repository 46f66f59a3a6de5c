import copy

import pytest
import torch
from conftest import needs_cpu_float16, train_step
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from mm_amp import (
    AmpOptimWrapper,
    ConfigError,
    NonFiniteError,
    OptimWrapper,
)


@pytest.fixture
def twins(model):
    """Two models with equal parameters and equal gradients, all of size 3."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    twin = copy.deepcopy(model)
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        other.grad = parameter.grad.clone()
    return model, twin


def _gradients(model):
    return [parameter.grad for parameter in model.parameters()]


def test_the_norm_is_summed_in_the_order_of_the_model(model, batches):
    model.add_module("3", torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(40))))
    twin = copy.deepcopy(model)
    groups = [{"params": list(model.parameters())[start::3]} for start in (2, 0, 1)]
    wrapper = OptimWrapper(torch.optim.SGD(groups, lr=0.1), clip_grad={"max_norm": 1e-3})
    by_hand = torch.optim.SGD(twin.parameters(), lr=0.1)
    for inputs, targets in batches[:5]:
        result = train_step(wrapper, model, (inputs, targets))
        torch.nn.functional.mse_loss(twin(inputs), targets).backward()
        assert torch.equal(clip_grad_norm_(twin.parameters(), 1e-3), result.grad_norm)
        by_hand.step()
        by_hand.zero_grad()
        assert all(map(torch.equal, model.parameters(), twin.parameters()))
    wrapper.add_param_group({"params": [extra := torch.nn.Parameter(torch.ones(()))]})
    with wrapper.optim_context(model):
        loss = model(batches[0][0]).mean() * 0 + 2 * extra
    assert wrapper.update_params(loss).grad_norm == 2  # found though the model does not hold it


@pytest.mark.parametrize("norm_type", [1, 2, float("inf")])
def test_clip_by_norm_equals_torch_and_reports_the_norm_before(twins, sgd, norm_type):
    model, twin = twins
    clip_grad = {"type": "norm", "max_norm": 0.1, "norm_type": norm_type}
    result = OptimWrapper(sgd, clip_grad=clip_grad).step()
    norm = clip_grad_norm_(twin.parameters(), 0.1, norm_type=norm_type)
    torch.testing.assert_close(result.grad_norm, norm, rtol=0, atol=0)
    torch.testing.assert_close(_gradients(model), _gradients(twin), rtol=0, atol=0)


class _Packing(torch.optim.SGD):
    """Stands in for the optimizers of torch_npu, which clip all gradients in one tensor."""

    is_fused_optimizer = True

    def clip_grad_norm_fused_(self, max_norm, norm_type=2):
        self.asked = (max_norm, norm_type)
        parameters = [p for group in self.param_groups for p in group["params"]]
        return clip_grad_norm_(parameters, max_norm, norm_type)


@pytest.mark.parametrize("norm_type", [2, float("inf")])
def test_an_optimizer_that_has_packed_its_gradients_is_asked_to_clip(twins, norm_type):
    model, twin = twins
    optimizer = _Packing(model.parameters(), lr=0.1)
    clip_grad = {"max_norm": 0.1, "norm_type": norm_type}
    wrapper = OptimWrapper(optimizer, clip_grad=clip_grad)
    norm = clip_grad_norm_(twin.parameters(), 0.1, norm_type=norm_type)
    torch.testing.assert_close(wrapper.step().grad_norm, norm, rtol=0, atol=0)
    torch.testing.assert_close(_gradients(model), _gradients(twin), rtol=0, atol=0)
    assert optimizer.asked == (0.1, norm_type)


def test_clip_by_value_equals_torch_and_measures_nothing(twins, sgd):
    model, twin = twins
    result = OptimWrapper(sgd, clip_grad={"type": "value", "clip_value": 0.2}).step()
    clip_grad_value_(twin.parameters(), 0.2)
    assert result.grad_norm is None
    torch.testing.assert_close(_gradients(model), _gradients(twin), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("clip_grad", "message"),
    [
        ({}, "needs max_norm"),
        ({"type": "norm"}, "needs max_norm"),
        ({"type": "value"}, "needs clip_value"),
        ({"type": "agd", "clip_factor": 0.01}, "type 'agd'; there is norm, value, agc"),
        ({"type": "agc"}, "needs clip_factor"),
        ({"type": "agc", "clip_factor": 0.01, "eps": 0}, "eps is 0"),
        ({"type": "vlaue", "clip_value": 1}, "did you mean 'value'"),
        ({"max_nrom": 1.0}, "no key 'max_nrom'.*did you mean 'max_norm'"),
        ({"type": "value", "max_norm": 1.0}, "no key 'max_norm'; it takes clip_value"),
        ({"max_norm": "1"}, "max_norm is '1'"),
        ({"max_norm": 0}, "max_norm is 0"),
        ({"max_norm": True}, "max_norm is True"),
        ({"max_norm": float("nan")}, "max_norm is nan"),
        ({"max_norm": 1.0, "norm_type": "l2"}, "norm_type is 'l2'"),
        ({"max_norm": 1.0, "error_if_nonfinite": 1}, "error_if_nonfinite is 1"),
        (1.0, "clip_grad is 1\\.0; it must be a dict"),
        ([("max_norm", 1.0)], "must be a dict"),
    ],
)
def test_wrong_clip_grad_is_named_at_construction(sgd, clip_grad, message):
    with pytest.raises(ConfigError, match=message):
        OptimWrapper(sgd, clip_grad=clip_grad)


@needs_cpu_float16
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_hooks_see_gradients_without_the_loss_scale(model, batches, fused):
    options = {"fused": True} if fused else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    wrapper = AmpOptimWrapper(optimizer, {"init_scale": 1024.0}, "float16")
    seen = []
    wrapper.register_gradient_hook(
        lambda _: seen.append([one.grad.clone() for one in model.parameters()])
    )
    before = [one.detach().clone() for one in model.parameters()]
    train_step(wrapper, model, batches[0])
    for one, old, gradient in zip(model.parameters(), before, seen[0], strict=True):
        torch.testing.assert_close(one.detach(), old - 0.1 * gradient)


def test_error_if_nonfinite_raises_and_steps_nothing(model, sgd):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model[0].weight.grad[0] = float("nan")
    before = copy.deepcopy(model.state_dict())
    wrapper = OptimWrapper(sgd, clip_grad={"max_norm": 1.0, "error_if_nonfinite": True})
    with pytest.raises(NonFiniteError, match="total norm of the gradients is nan") as raised:
        wrapper.step()
    assert isinstance(raised.value, RuntimeError)  # as torch raises
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    model[0].weight.grad.fill_(1.0)
    assert wrapper.step().stepped


@pytest.mark.parametrize("clip_grad", [None, {"max_norm": 0.5}], ids=["unclipped", "clipped"])
def test_hooks_see_complete_gradients_before_clipping_and_may_change_them(
    model, batches, clip_grad
):
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1), 2, clip_grad)
    seen = []

    def clear(optimizer):
        assert optimizer is wrapper.optimizer
        seen.append(torch.cat([one.grad.flatten() for one in model.parameters()]).norm().item())
        if clip_grad is None:
            for parameter in model.parameters():
                parameter.grad.zero_()

    handle = wrapper.register_gradient_hook(clear)
    before = copy.deepcopy(list(model.parameters()))
    for batch in batches[:2]:
        train_step(wrapper, model, batch)
    assert len(seen) == 1  # of two micro-batches the second steps
    if clip_grad:
        assert wrapper.last_result.grad_norm.item() == pytest.approx(seen[0])
    else:
        assert all(map(torch.equal, before, model.parameters()))
    handle.remove()
    for batch in batches[2:4]:
        train_step(wrapper, model, batch)
    assert len(seen) == 1
