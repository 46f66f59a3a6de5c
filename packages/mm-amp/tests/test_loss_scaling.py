"""Loss scale and scaler: how they are built, saved and loaded, and a device's own scaler."""

import copy
import logging
from types import SimpleNamespace

import pytest
import torch
from conftest import needs_cpu_float16, train_step
from recording import make_model

from mm_amp import AmpOptimWrapper, ConfigError, OptimWrapper


def _optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def _wrap(model, loss_scale=None, **options):
    scale = {"init_scale": 1024.0, "growth_interval": 3} if loss_scale is None else loss_scale
    return AmpOptimWrapper(_optimizer(model), scale, "float16", **options)


@needs_cpu_float16
def test_disabled_scaler_is_none(model, sgd):
    model.half()  # no scaler, so nothing speaks against it
    assert AmpOptimWrapper(sgd, {"enabled": False}, "float16").loss_scaler is None


@needs_cpu_float16
def test_resumed_run_continues_bit_by_bit(model, batches):
    wrapper = _wrap(model)
    for index, (inputs, targets) in enumerate(batches[:5]):
        train_step(wrapper, model, (inputs, targets * (float("inf") if index == 1 else 1)))
    twin = copy.deepcopy(model)
    other = _wrap(twin, {"init_scale": 8.0})
    other.load_state_dict(copy.deepcopy(wrapper.state_dict()))
    for batch in batches[5:10]:
        train_step(wrapper, model, batch)
        train_step(other, twin, batch)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)
    assert wrapper.state_dict()["loss_scaler"] == other.state_dict()["loss_scaler"]


@needs_cpu_float16
@pytest.mark.parametrize("saved", [{}, {"loss_scaler": {}}], ids=["none", "MMEngine's disabled"])
def test_state_without_a_scaler_loads_into_one_with_one_log_line(model, caplog, saved):
    wrapper = _wrap(model)
    with caplog.at_level(logging.INFO):
        wrapper.load_state_dict({**OptimWrapper(_optimizer(model)).state_dict(), **saved})
    assert "holds no loss scaler; the loss scale starts at init_scale" in caplog.text
    assert wrapper.loss_scaler.get_scale() == 1024


@needs_cpu_float16
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_with_a_scaler_loads_without_one_with_one_log_line(model, caplog, dtype):
    state = _wrap(model).state_dict()
    wrapper = AmpOptimWrapper(_optimizer(model), dtype=dtype)
    with caplog.at_level(logging.INFO):
        wrapper.load_state_dict(state)
        assert "loss_scaler" in state
        wrapper.load_state_dict(wrapper.state_dict())
    (record,) = caplog.records
    assert "holds a loss scaler, which is not used" in record.message


@needs_cpu_float16
def test_static_scale_of_the_configuration_wins_over_the_state(model):
    wrapper = _wrap(model, loss_scale=8)
    wrapper.load_state_dict(_wrap(model).state_dict())
    assert wrapper.loss_scaler.get_scale() == 8


@needs_cpu_float16
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state["loss_scaler"].pop("scale"), "loss_scaler lacks scale"),
        (lambda state: state.update(loss_scaler=1024.0), "loss_scaler is a float"),
    ],
)
def test_damaged_scaler_state_is_named(model, change, message):
    state = _wrap(model).state_dict()
    change(state)
    with pytest.raises(ConfigError, match=message):
        _wrap(model).load_state_dict(state)


@pytest.fixture
def _own_scaler(monkeypatch):
    """A device's own scaler: that of torch_npu differs so from torch's."""
    torch_scaler = torch.amp.GradScaler

    class GradScaler(torch_scaler):
        """Hands itself to fused optimizers, and keeps and wants one key more."""

        def step(self, optimizer, **kwargs):
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                return optimizer.step(grad_scaler=self, **kwargs)
            return super().step(optimizer, **kwargs)

        def state_dict(self):
            return {**super().state_dict(), "dynamic": True}

        def load_state_dict(self, state):
            assert state["dynamic"]
            super().load_state_dict(state)

    monkeypatch.delattr(torch.amp, "GradScaler")  # as before torch 2.3
    monkeypatch.setattr(torch.cpu, "amp", SimpleNamespace(GradScaler=GradScaler), raising=False)


def _make(clip_grad=None, **options):
    model = make_model().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)
    wrapper = AmpOptimWrapper(optimizer, {"init_scale": 64.0}, "float16", clip_grad=clip_grad)
    return model, wrapper


def _step(model, wrapper, factor=1.0):
    with wrapper.optim_context(model):
        loss = model(torch.ones(2, 4)).float().mean() * factor
    return wrapper.update_params(loss)


@needs_cpu_float16
@pytest.mark.usefixtures("_own_scaler")
@pytest.mark.parametrize("clip_grad", [None, {"max_norm": 0.05}])
def test_fused_optimizers_of_torch_step_and_skip_under_a_devices_own_scaler(clip_grad):
    (model, wrapper), (plain_model, plain) = _make(clip_grad, fused=True), _make(clip_grad)
    for factor in (1.0, float("inf"), 1.0):
        results = [_step(model, wrapper, factor), _step(plain_model, plain, factor)]
        assert [one.stepped for one in results] == [factor == 1.0] * 2
        assert [one.skipped for one in results] == [factor != 1.0] * 2
    torch.testing.assert_close(model.state_dict(), plain_model.state_dict())
    assert wrapper.loss_scaler.get_scale() == 32.0
    # Still torch's mark: another wrapper finds the optimizer as it was.
    assert wrapper.optimizer._step_supports_amp_scaling
