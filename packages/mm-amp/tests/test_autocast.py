import pytest
import torch
from conftest import DTYPES
from torch import nn

from mm_amp import ConfigError, autocast


def _product_dtype():
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_computes_in_the_dtype(dtype):
    with autocast("cpu", dtype):
        assert _product_dtype() == getattr(torch, dtype)
    with autocast("cpu", getattr(torch, dtype)):
        assert _product_dtype() == getattr(torch, dtype)
    assert _product_dtype() == torch.float32


def test_autocast_disabled_does_not_mind_a_device_without_autocast():
    with autocast("meta", enabled=False):
        assert _product_dtype() == torch.float32


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
