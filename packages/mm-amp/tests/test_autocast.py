import pytest
import torch
from conftest import DTYPES, is_autocast_on, needs_cpu_float16
from torch import nn

import mm_amp._autocast
from mm_amp import ConfigError, TorchVersionError, autocast


def _product_dtype():
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_computes_in_the_dtype(dtype):
    with autocast("cpu", dtype):
        assert _product_dtype() == getattr(torch, dtype)
    with autocast("cpu", getattr(torch, dtype)):
        assert _product_dtype() == getattr(torch, dtype)
    assert _product_dtype() == torch.float32


def test_autocast_defaults_to_torch_choice():
    with autocast("cpu"):
        assert _product_dtype() == torch.bfloat16
    with autocast("cpu", "auto"):
        assert _product_dtype() == torch.bfloat16


@pytest.mark.skipif(torch.cuda.is_available(), reason="the default is then the GPU")
def test_autocast_defaults_to_the_cpu_without_an_accelerator():
    with autocast():
        assert is_autocast_on()


def test_autocast_disabled_inside_another():
    with autocast("cpu"), autocast("cpu", enabled=False):
        assert _product_dtype() == torch.float32


def test_autocast_disabled_does_not_mind_a_device_without_autocast():
    with autocast("meta", enabled=False):
        assert _product_dtype() == torch.float32


def test_autocast_cache_can_be_turned_off():
    layer = nn.Linear(2, 2)
    with autocast("cpu", cache_enabled=False):
        assert not torch.is_autocast_cache_enabled()
        with torch.no_grad():
            layer(torch.ones(1, 2))
        layer(torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize(
    ("device_type", "dtype", "message"),
    [
        ("cpu", "float32", "float32, but mixed precision"),
        ("cpu", "flaot16", "did you mean 'float16'"),
        ("meta", "bfloat16", "on 'meta'"),
        ("meta", None, "on 'meta'"),
        ("abacus", None, "device_type is 'abacus'"),
    ],
)
def test_autocast_raises_where_torch_would_go_on_in_full_precision(device_type, dtype, message):
    with pytest.raises(ConfigError, match=message):
        autocast(device_type, dtype)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_autocast_raises_without_the_device():
    with pytest.raises(ConfigError, match=r"'cuda'.*not available"):
        autocast("cuda", "float16")


def test_float16_on_the_cpu_of_an_old_torch_names_the_version(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("only support Bfloat16")

    mm_amp._autocast.check_autocast.cache_clear()
    monkeypatch.setattr(mm_amp._autocast, "_new_autocast", refuse)
    with pytest.raises(TorchVersionError, match=r"which torch .* lacks; use dtype='bfloat16'"):
        autocast("cpu", "float16")


@pytest.mark.skipif(hasattr(torch, "get_autocast_dtype"), reason="this torch can do it")
def test_float16_on_the_cpu_is_refused_by_this_old_torch():
    with pytest.raises(TorchVersionError, match=r"torch 2\.4"):
        autocast("cpu", "float16")


@needs_cpu_float16
@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), "float16"), ((8, 0), "bfloat16")])
def test_auto_dtype_asks_for_native_bfloat16(monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    resolved = mm_amp._autocast.resolve_dtype("auto", torch.device("cuda"))
    assert resolved == getattr(torch, dtype)
