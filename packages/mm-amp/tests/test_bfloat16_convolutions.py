import pytest
import torch
from torch import nn

from mm_amp._bfloat16_convolutions import warn_about_slow_convolutions

_SWITCH = "TORCH_CUDNN_V8_API_ENABLED"


@pytest.fixture
def old_torch(monkeypatch):
    monkeypatch.delattr(torch, "compile", raising=False)
    monkeypatch.delenv(_SWITCH, raising=False)


@pytest.mark.parametrize(
    ("model", "device_type", "dtype", "expected"),
    [
        (nn.Sequential(nn.Conv2d(1, 1, 1)), "cuda", torch.bfloat16, 1),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), "cuda", torch.float16, 0),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), "cpu", torch.bfloat16, 0),
        (nn.Sequential(nn.Linear(1, 1)), "cuda", torch.bfloat16, 0),
    ],
    ids=["convolution", "float16", "cpu", "no-convolution"],
)
@pytest.mark.usefixtures("old_torch")
def test_warning_names_the_switch(caplog, model, device_type, dtype, expected):
    warn_about_slow_convolutions(model, device_type, dtype)
    assert caplog.text.count(f"{_SWITCH}=1") == expected


@pytest.mark.usefixtures("old_torch")
def test_no_warning_where_the_switch_is_set(caplog, monkeypatch):
    monkeypatch.setenv(_SWITCH, "1")
    warn_about_slow_convolutions(nn.Conv2d(1, 1, 1), "cuda", torch.bfloat16)
    assert not caplog.records


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 1 needs the switch")
def test_no_warning_on_torch_two(caplog):
    warn_about_slow_convolutions(nn.Conv2d(1, 1, 1), "cuda", torch.bfloat16)
    assert not caplog.records
