import copy
from inspect import signature

import pytest
import torch
from conftest import DTYPES, needs_cpu_float16, train_step
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from mm_amp import (
    AmpOptimWrapper,
    ConfigError,
    NonFiniteError,
    OptimWrapper,
)

needs_foreach = pytest.mark.skipif(
    "foreach" not in signature(clip_grad_norm_).parameters, reason="torch 2.0 has foreach"
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 2, 4])
def test_clipping_sees_gradients_without_the_loss_scale(model, batches, dtype, window):
    def run(loss_scale):
        twin = copy.deepcopy(model)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        wrapper = AmpOptimWrapper(
            optimizer,
            loss_scale,
            dtype,
            accumulative_counts=window,
            clip_grad={"max_norm": 0.05},
        )
        norms = [train_step(wrapper, twin, batch).grad_norm for batch in batches[:8]]
        return [norm for norm in norms if norm is not None], twin.state_dict()

    norms, state = run(loss_scale=256)
    norms_unscaled, state_unscaled = run(loss_scale=1)
    assert len(norms) == 8 // window
    # Powers of two scale exactly; only float16's subnormal gradients can differ.
    torch.testing.assert_close(norms, norms_unscaled, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(state, state_unscaled, rtol=1e-3, atol=1e-5)


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


@pytest.mark.parametrize("kind", ["one dtype", "two dtypes", "with a graph", "NaN"])
def test_all_kinds_of_gradients_are_clipped_as_torch_clips_them(model, kind):
    if kind == "two dtypes":
        model[-1].double()
    inputs = torch.ones(2, 4)
    hidden = model[:-1](inputs).to(model[-1].weight.dtype)
    loss, parameters = model[-1](hidden).square().sum(), list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, create_graph=kind == "with a graph")
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    if kind == "NaN":
        model[0].weight.grad[0, 0] = float("nan")
    wanted = [gradient.detach().clone() for gradient in gradients]
    result = OptimWrapper(
        torch.optim.SGD(model.parameters(), lr=0.1), clip_grad={"max_norm": 0.1}
    ).step()
    if kind == "NaN":  # nothing is scaled, so that it stays visible where the NaN was
        assert torch.isnan(result.grad_norm)
    else:
        leaves = [torch.zeros_like(grad).requires_grad_() for grad in wanted]
        for leaf, grad in zip(leaves, wanted, strict=True):
            leaf.grad = grad
        norm = clip_grad_norm_(leaves, 0.1)
        torch.testing.assert_close(result.grad_norm, norm, rtol=0, atol=0, check_dtype=False)
    clipped = [gradient.detach() for gradient in gradients]
    torch.testing.assert_close(clipped, wanted, rtol=0, atol=0, equal_nan=True)


def test_clipping_without_gradients_reports_no_norm(model, sgd):
    assert all(parameter.grad is None for parameter in model.parameters())
    assert OptimWrapper(sgd, clip_grad={"max_norm": 1.0}).step().grad_norm is None


_NOT_FINITE = [
    pytest.param(
        {2: "nan"},
        r"gradients is nan.* 2\.weight of 2 \(Linear\), torch.float32, norm nan "
        r"\(1 of 4",
        id="NaN",
    ),
    pytest.param(
        {0: "inf", 3: "inf"}, r"is inf.*: 2\.bias of 2 .*; 0\.weight of 0 .*\(2 of 4", id="inf"
    ),
]


@pytest.mark.parametrize(("values", "message"), _NOT_FINITE)
def test_error_if_nonfinite_names_the_norm_and_the_first_parameters(model, sgd, values, message):
    for index, parameter in enumerate(model.parameters()):
        parameter.grad = torch.zeros_like(parameter)
        parameter.grad.view(-1)[0] = float(values.get(index, 1.0))
    before = copy.deepcopy(model.state_dict())
    wrapper = OptimWrapper(sgd, clip_grad={"max_norm": 1.0, "error_if_nonfinite": True})
    with wrapper.optim_context(model):
        pass
    with pytest.raises(NonFiniteError, match=message) as raised:
        wrapper.step()
    assert isinstance(raised.value, RuntimeError)  # as torch raises
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert wrapper.step().stepped


@pytest.mark.parametrize("clip_grad", [None, {"max_norm": 0.5}], ids=["unclipped", "clipped"])
def test_hooks_see_complete_gradients_before_clipping_and_may_change_them(
    model, batches, clip_grad
):
    wrapper = OptimWrapper(
        torch.optim.SGD(model.parameters(), lr=0.1), accumulative_counts=2, clip_grad=clip_grad
    )
    assert wrapper.clip_grad == clip_grad
    seen = []

    def note(optimizer):
        assert optimizer is wrapper.optimizer
        seen.append(torch.cat([one.grad.flatten() for one in model.parameters()]).norm().item())

    def clear(_):
        for parameter in model.parameters():
            parameter.grad.zero_()

    handles = [wrapper.register_gradient_hook(note)]
    before = [one.detach().clone() for one in model.parameters()]
    for batch in batches[:2]:
        train_step(wrapper, model, batch)
    assert len(seen) == 1  # of two micro-batches the second steps
    if clip_grad:
        assert wrapper.last_result.grad_norm.item() == pytest.approx(seen[0])
    else:
        assert wrapper.last_result.grad_norm is None
    moved = [one.detach().clone() for one in model.parameters()]
    assert not all(map(torch.equal, moved, before))
    handles.append(wrapper.register_gradient_hook(clear))
    for batch in batches[2:4]:
        train_step(wrapper, model, batch)
    assert all(map(torch.equal, moved, model.parameters()))
    assert len(seen) == 2
    for handle in handles:
        handle.remove()
    for batch in batches[4:6]:
        train_step(wrapper, model, batch)
    assert len(seen) == 2
    assert not all(map(torch.equal, moved, model.parameters()))


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
