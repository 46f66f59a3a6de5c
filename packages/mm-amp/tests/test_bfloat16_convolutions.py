"""Warnings for old torch on CUDA, on stand-ins for both: this machine needs neither."""

import pytest
import torch
from torch import nn

from mm_amp import add_fp32_islands
from mm_amp._bfloat16_convolutions import warn_about_bfloat16

_SWITCH = "TORCH_CUDNN_V8_API_ENABLED"


@pytest.fixture
def old_torch(monkeypatch):
    """Torch 1.13 with CUDA and cuDNN, as far as the warnings look at it."""
    monkeypatch.delattr(torch, "compile", raising=False)
    monkeypatch.delattr(nn.Module, "compile", raising=False)
    monkeypatch.delenv(_SWITCH, raising=False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)


def _convolution():
    return nn.Sequential(nn.Conv2d(1, 1, 1))


@pytest.mark.parametrize(
    ("model", "device_type", "dtype", "expected"),
    [
        (_convolution(), "cuda", torch.bfloat16, 1),
        (_convolution(), "cuda", torch.float16, 0),
        (_convolution(), "cpu", torch.bfloat16, 0),
        (nn.Sequential(nn.Linear(1, 1)), "cuda", torch.bfloat16, 0),
        (len, "cuda", torch.bfloat16, 0),
    ],
    ids=["convolution", "float16", "cpu", "no-convolution", "no-module"],
)
@pytest.mark.usefixtures("old_torch")
def test_warning_names_the_switch(caplog, model, device_type, dtype, expected):
    warn_about_bfloat16(model, device_type, dtype)
    assert caplog.text.count(f"{_SWITCH}=1") == expected


@pytest.mark.usefixtures("old_torch")
@pytest.mark.parametrize(("value", "expected"), [("1", 0), ("0", 1)])
def test_warning_depends_on_the_switch(caplog, monkeypatch, value, expected):
    monkeypatch.setenv(_SWITCH, value)
    warn_about_bfloat16(_convolution(), "cuda", torch.bfloat16)
    assert caplog.text.count(f"{_SWITCH}=1") == expected


@pytest.mark.usefixtures("old_torch")
def test_no_warning_without_cudnn(caplog, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    warn_about_bfloat16(_convolution(), "cuda", torch.bfloat16)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", "5.2")
    warn_about_bfloat16(_convolution(), "cuda", torch.bfloat16)
    assert not caplog.records


@pytest.mark.usefixtures("old_torch")
def test_no_warning_of_layers_in_an_fp32_island(caplog):
    model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Upsample(2)))
    add_fp32_islands(model, "0")
    warn_about_bfloat16(model, "cuda", torch.bfloat16)
    assert not caplog.records


@pytest.mark.usefixtures("old_torch")
def test_warning_of_upsampling_names_the_way_out(caplog):
    warn_about_bfloat16(nn.Sequential(nn.Upsample(2)), "cuda", torch.bfloat16)
    assert "cannot upsample in bfloat16 on CUDA" in caplog.text
    assert "fp32_modules" in caplog.text


@pytest.mark.skipif(not hasattr(nn.Module, "compile"), reason="older torch needs the warnings")
def test_no_warning_on_this_torch(caplog):
    warn_about_bfloat16(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Upsample(2)), "cuda", torch.bfloat16)
    assert not caplog.records
