import copy
import logging

import pytest
import torch
from conftest import needs_cpu_float16, train_step

from mm_amp import AmpOptimWrapper, ConfigError, OptimWrapper

pytestmark = needs_cpu_float16


def _optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def _wrap(model, loss_scale=None):
    options = {"init_scale": 4096.0, "growth_interval": 3, "growth_factor": 1.7}
    return AmpOptimWrapper(_optimizer(model), loss_scale or options, "float16")


def test_ten_steps_and_resume_equal_twenty(model, batches):
    straight = copy.deepcopy(model)
    wrapper = _wrap(straight)
    for batch in batches:
        train_step(wrapper, straight, batch)

    first = _wrap(model)
    for batch in batches[:10]:
        train_step(first, model, batch)
    state = copy.deepcopy(first.state_dict())
    resumed = AmpOptimWrapper(_optimizer(model), dtype="float16")
    resumed.load_state_dict(state)
    assert resumed.state_dict()["loss_scaler"] == first.state_dict()["loss_scaler"]
    for batch in batches[10:]:
        train_step(resumed, model, batch)

    assert resumed.state_dict()["loss_scaler"] == wrapper.state_dict()["loss_scaler"]
    assert wrapper.loss_scaler.get_scale() > 4096
    torch.testing.assert_close(model.state_dict(), straight.state_dict(), rtol=0, atol=0)


def test_state_has_the_keys_of_mmengine(model):
    state = _wrap(model).state_dict()
    assert set(state) == {"state", "param_groups", "loss_scaler"}
    keys = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
    assert set(state["loss_scaler"]) == keys


@pytest.mark.parametrize("extra", [{}, {"loss_scaler": {}}], ids=["absent", "empty"])
def test_state_without_a_scaler_loads_with_one_log_line(model, caplog, extra):
    with caplog.at_level(logging.INFO):
        _wrap(model).load_state_dict({**_optimizer(model).state_dict(), **extra})
    (record,) = caplog.records
    assert "no loss scaler" in record.message


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_with_a_scaler_loads_without_one_with_one_log_line(model, caplog, dtype):
    state = _wrap(model).state_dict()
    optimizer = _optimizer(model)
    wrapper = (
        OptimWrapper(optimizer) if dtype == "float32" else AmpOptimWrapper(optimizer, dtype=dtype)
    )
    with caplog.at_level(logging.INFO):
        wrapper.load_state_dict(state)
        assert "loss_scaler" in state
        (record,) = caplog.records
        assert "holds a loss scaler, which is not used" in record.message
        wrapper.load_state_dict(wrapper.state_dict())
        assert len(caplog.records) == 1


def test_static_scale_of_the_configuration_wins_over_the_state(model):
    wrapper = _wrap(model, loss_scale=8)
    wrapper.load_state_dict(_wrap(model).state_dict())
    assert wrapper.loss_scaler.get_scale() == 8


def test_damaged_scaler_state_is_named(model):
    state = _wrap(model).state_dict()
    del state["loss_scaler"]["scale"]
    with pytest.raises(ConfigError, match="loss_scaler lacks scale"):
        _wrap(model).load_state_dict(state)


def test_scaler_state_of_another_type_is_named(model):
    state = {**_wrap(model).state_dict(), "loss_scaler": 1024.0}
    with pytest.raises(ConfigError, match="loss_scaler is a float"):
        _wrap(model).load_state_dict(state)
