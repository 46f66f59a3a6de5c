import os
import subprocess
import sys

import pytest
import torch
from conftest import DTYPES, is_autocast_on, needs_cpu_float16
from torch import nn

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


@pytest.mark.skipif(hasattr(torch, "get_autocast_dtype"), reason="this torch can do it")
def test_float16_on_the_cpu_is_refused_by_this_old_torch():
    with pytest.raises(TorchVersionError, match=r"torch 2\.4"):
        autocast("cpu", "float16")


_STAND_IN = """
import types, torch, mm_amp
torch.utils.rename_privateuse1_backend("npu")
module = types.ModuleType("torch.npu")
module.is_available = lambda: True
module.device_count = lambda: 1
module.current_device = lambda: 0
module._is_in_bad_fork = lambda: False
module.is_autocast_enabled = lambda: torch.is_autocast_enabled("npu")
module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
module.is_bf16_supported = lambda: True
torch._register_device_module("npu", module)
with mm_amp.autocast("npu:0", "float16", cache_enabled=False):
    assert torch.is_autocast_enabled("npu")
    assert torch.get_autocast_dtype("npu") == torch.float16
    with mm_amp.autocast("npu", enabled=False):
        assert not torch.is_autocast_enabled("npu")
with mm_amp.autocast("npu", "auto"):
    assert torch.get_autocast_dtype("npu") == torch.bfloat16
module.get_amp_supported_dtype = lambda: [torch.float16]
from mm_amp._precision import check_autocast
check_autocast.cache_clear()
try:
    mm_amp.autocast("npu", "bfloat16")
except mm_amp.ConfigError as error:
    assert "on 'npu'" in str(error)
else:
    raise AssertionError("bfloat16 was accepted")
"""


@needs_cpu_float16
def test_autocast_of_a_stand_in_npu():
    # In a process of its own: a backend is renamed once for all.
    command = [sys.executable, "-W", "error", "-c", _STAND_IN]
    subprocess.run(command, check=True, env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})


@pytest.mark.skipif(
    not hasattr(getattr(torch, "compiler", None), "set_stance"), reason="an old compiler breaks it"
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the compiler's, of a Python version
def test_autocast_within_compiled_code():
    layer = nn.Linear(2, 2)

    @torch.compile(backend="eager", fullgraph=True)
    def forward(inputs):
        with autocast("cpu", "bfloat16"):
            low = layer(inputs)
            with autocast("cpu", enabled=False):
                return low, layer(inputs)

    torch._dynamo.reset()
    assert [output.dtype for output in forward(torch.ones(1, 2))] == [
        torch.bfloat16,
        torch.float32,
    ]
    torch._dynamo.reset()
