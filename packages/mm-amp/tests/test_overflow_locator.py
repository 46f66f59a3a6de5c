"""Skipped steps are located, limited in number, and never reach the parameters."""

import copy
import logging
import math

import pytest
import torch
from conftest import needs_cpu_float16, train_step
from torch import nn

from mm_amp import AmpOptimWrapper, ConfigError, MMAmpError, NonFiniteError, OptimWrapper

_LOCATOR = "mm_amp._scaling._locator"
_SCALE = {"init_scale": 64.0}


def _sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def _float16(model, loss_scale=_SCALE, **options):
    return AmpOptimWrapper(_sgd(model), loss_scale, "float16", **options)


def _spoil(parameter, value):
    """Let the next gradients of ``parameter`` be ``value``; returns what ends that."""
    return parameter.register_hook(lambda gradient: torch.full_like(gradient, value))


def _nan_loss(batch):
    return batch[0], batch[1] * math.nan


def _records(caplog):
    return [record for record in caplog.records if record.name == _LOCATOR]


@pytest.fixture(autouse=True)
def _all_levels(caplog):
    caplog.set_level(logging.INFO, _LOCATOR)


@needs_cpu_float16
@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize(
    "clip_grad", [None, {"max_norm": 1.0}, {"type": "agc", "clip_factor": 0.1}],
    ids=["unclipped", "norm", "agc"],
)  # fmt: skip
def test_skipped_step_names_the_parameter(model, batches, caplog, value, clip_grad):
    wrapper = _float16(model, clip_grad=clip_grad)
    train_step(wrapper, model, batches[0])
    assert not _records(caplog)
    _spoil(model[0].bias, value)
    train_step(wrapper, model, batches[1])
    (record,) = _records(caplog)
    assert record.levelno == logging.INFO  # the scale may have been too large
    found = record.getMessage()
    kind = "nan" if math.isnan(value) or clip_grad else "inf"
    assert f"0.bias of 0 (Linear), torch.float32, norm {kind} (1 of 4 gradients)" in found
    assert "loss scale 64, skipped in a row: 1." in found


@needs_cpu_float16
def test_fused_optimizer_tells_late_and_says_so(model, batches, caplog):
    wrapper = AmpOptimWrapper(_sgd(model, fused=True), _SCALE, "float16")
    handle = _spoil(model[0].bias, math.inf)
    train_step(wrapper, model, batches[0])
    train_step(wrapper, model, batches[1])
    handle.remove()
    train_step(wrapper, model, batches[2])
    train_step(wrapper, model, batches[3])
    first, second = [record.getMessage() for record in _records(caplog)]
    assert "0.bias of 0 (Linear)" in first
    assert "a fused optimizer reports a skip one step late" in second


@needs_cpu_float16
@pytest.mark.parametrize(
    ("loss_scale", "spoils_loss", "level"),
    [
        pytest.param(_SCALE, False, logging.INFO, id="the scale adapts"),
        pytest.param({"init_scale": 1.0}, False, logging.WARNING, id="small scale"),
        pytest.param(64.0, False, logging.WARNING, id="static scale"),
        pytest.param(_SCALE, True, logging.WARNING, id="loss is NaN"),
    ],
)
def test_level_says_whether_the_scale_can_help(
    model, batches, caplog, loss_scale, spoils_loss, level
):
    wrapper = _float16(model, loss_scale)
    if not spoils_loss:
        _spoil(model[0].bias, math.inf)
    train_step(wrapper, model, _nan_loss(batches[0]) if spoils_loss else batches[0])
    (record,) = _records(caplog)
    assert record.levelno == level
    assert ("Loss nan" in record.getMessage()) == spoils_loss


class _Hot(nn.Module):
    """Overflows in float16, not in float32."""

    def forward(self, inputs):
        return inputs * 1e6


@needs_cpu_float16
def test_too_many_in_a_row_name_loss_layer_dtype_and_remedy(batches):
    model = nn.Sequential(nn.Linear(4, 8), _Hot(), nn.Linear(8, 1))
    wrapper = _float16(model, max_skips=3)
    before = [parameter.clone() for parameter in model.parameters()]
    train_step(wrapper, model, batches[0])
    train_step(wrapper, model, batches[1])
    with pytest.raises(NonFiniteError) as raised:
        train_step(wrapper, model, batches[2])
    message = str(raised.value)
    assert "first module whose output is not finite: 1 (_Hot), torch.float16." in message
    assert "Loss nan, loss scale 16, skipped in a row: 3." in message or "Loss inf" in message
    for remedy in ("bfloat16", "fp32_modules=['1']", "clip_grad", "learning rate"):
        assert remedy in message
    assert isinstance(raised.value, MMAmpError)
    assert isinstance(raised.value, FloatingPointError)
    assert all(map(torch.equal, before, model.parameters()))
    assert not any(module._forward_hooks for module in model.modules())


class _HotBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 8)

    def forward(self, inputs):
        return self.linear(inputs) * 1e6


@needs_cpu_float16
@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")  # Python 3.13.0
@pytest.mark.parametrize("in_place", [False, True], ids=["wrapped", "in place"])
def test_compiled_modules_are_watched_from_outside(batches, in_place):
    inner = _HotBlock()
    options = {"backend": "eager", "fullgraph": True}  # a hook in the graph would be an error
    if in_place:
        inner.compile(**options)
    else:
        inner = torch.compile(inner, **options)
    model = nn.Sequential(inner, nn.Linear(8, 1))
    wrapper = _float16(model, max_skips=2)
    train_step(wrapper, model, batches[0])
    with pytest.raises(NonFiniteError) as raised:
        train_step(wrapper, model, batches[1])
    first = "1 (Linear)" if in_place else "0 (OptimizedModule)"
    assert f"not finite: {first}, torch.float16" in str(raised.value)


def _guarded(model, dtype, **options):
    if dtype is None:
        return OptimWrapper(_sgd(model, momentum=0.9), **options)
    return AmpOptimWrapper(_sgd(model, momentum=0.9), dtype=dtype, **options)


WITHOUT_SCALER = pytest.mark.parametrize("dtype", [None, "bfloat16"], ids=["float32", "bfloat16"])


@WITHOUT_SCALER
def test_without_a_scaler_too_many_in_a_row_raise(model, batches, dtype):
    wrapper = _guarded(model, dtype, max_skips=2, accumulative_counts=2)
    train_step(wrapper, model, batches[0])
    train_step(wrapper, model, batches[1])
    train_step(wrapper, model, _nan_loss(batches[0]))
    train_step(wrapper, model, batches[0])
    assert wrapper.step_skipped
    train_step(wrapper, model, _nan_loss(batches[0]))
    with pytest.raises(NonFiniteError, match=r"Loss nan.*lower the learning rate") as raised:
        train_step(wrapper, model, batches[0])
    assert "bfloat16'" not in str(raised.value)


def test_a_loss_alone_can_be_bad(model, batches):
    wrapper = _guarded(model, None, max_skips=1)
    with pytest.raises(NonFiniteError, match="Loss inf"):  # its gradients are finite
        wrapper.update_params(model(batches[0][0]).mean() + math.inf)


_OPTIMIZERS = {
    "AdamW": lambda model, **own: torch.optim.AdamW(model.parameters(), lr=0.1, **own),
    "momentum": lambda model, **own: _sgd(model, momentum=0.9, weight_decay=0.1, **own),
}


@needs_cpu_float16  # which has fused optimizers on the CPU too
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("make", _OPTIMIZERS.values(), ids=_OPTIMIZERS)
@pytest.mark.parametrize("bad", [(0,), (2, 3)], ids=["first step", "later"])
def test_a_skipped_step_without_a_scaler_moves_nothing(model, batches, make, fused, bad):
    twin = copy.deepcopy(model)
    wrapper = OptimWrapper(make(model, fused=fused), clip_grad={"max_norm": 1.0}, max_skips=9)
    plain = OptimWrapper(make(twin, fused=fused), clip_grad={"max_norm": 1.0})
    for index, batch in enumerate(batches[:6]):
        result = train_step(wrapper, model, _nan_loss(batch) if index in bad else batch)
        assert (bool(result.stepped), bool(result.skipped)) == (index not in bad, index in bad)
        if index not in bad:
            train_step(plain, twin, batch)
        assert all(map(torch.equal, model.parameters(), twin.parameters()))
    for own, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(
            wrapper.optimizer.state[own], plain.optimizer.state[expected], rtol=0, atol=0
        )


@pytest.mark.parametrize("max_skips", [0, 2.5, True, "3"])
def test_max_skips_must_be_a_positive_integer(sgd, max_skips):
    for build in (OptimWrapper, AmpOptimWrapper):
        with pytest.raises(ConfigError, match=r"max_skips is .*integer of at least 1"):
            build(sgd, max_skips=max_skips)
