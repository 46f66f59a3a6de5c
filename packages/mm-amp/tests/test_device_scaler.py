"""A device's own gradient scaler, through a stand-in: that of torch_npu differs so from torch's."""

import copy

import pytest
import torch
from conftest import needs_cpu_float16
from recording import make_model

from mm_amp import AmpOptimWrapper, ConfigError, _loss_scale

pytestmark = needs_cpu_float16


@pytest.fixture
def _own_scaler(monkeypatch):
    class GradScaler(torch.amp.GradScaler):
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

    monkeypatch.setattr(_loss_scale, "_scaler_class", lambda _device_type: GradScaler)


def _make(clip_grad=None, **options):
    model = make_model().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)
    wrapper = AmpOptimWrapper(optimizer, {"init_scale": 64.0}, "float16", clip_grad=clip_grad)
    return model, wrapper


def _step(model, wrapper, factor=1.0):
    with wrapper.optim_context(model):
        loss = model(torch.ones(2, 4)).float().mean() * factor
    return wrapper.update_params(loss)


@pytest.mark.usefixtures("_own_scaler")
@pytest.mark.parametrize("clip_grad", [None, {"max_norm": 0.05}])
def test_fused_optimizers_of_torch_are_stepped_and_skipped(clip_grad):
    (model, wrapper), (plain_model, plain) = _make(clip_grad, fused=True), _make(clip_grad)
    for factor in (1.0, float("inf"), 1.0):
        results = [_step(model, wrapper, factor), _step(plain_model, plain, factor)]
        assert [one.stepped for one in results] == [factor == 1.0] * 2
        assert [one.skipped for one in results] == [factor != 1.0] * 2
    torch.testing.assert_close(model.state_dict(), plain_model.state_dict())
    assert wrapper.loss_scaler.get_scale() == 32.0
    # Still torch's mark: another wrapper finds the optimizer as it was.
    assert wrapper.optimizer._step_supports_amp_scaling


@pytest.mark.usefixtures("_own_scaler")
def test_a_state_of_torchs_scaler_is_loaded():
    _, wrapper = _make()
    state = copy.deepcopy(wrapper.state_dict())
    assert state["loss_scaler"].pop("dynamic")
    state["loss_scaler"]["scale"] = 8.0
    wrapper.load_state_dict(state)
    assert wrapper.loss_scaler.get_scale() == 8.0
    assert "dynamic" not in state["loss_scaler"]
    del state["loss_scaler"]["scale"]
    with pytest.raises(ConfigError, match="lacks scale"):
        wrapper.load_state_dict(state)
