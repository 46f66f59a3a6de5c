"""Models that cannot be compiled here, and what the user is told of them."""

import warnings

import pytest
import torch
from blocks import Stack
from torch import nn
from toy import Toy, needs_compile

from mm_compile import AlreadyCompiledError, ConfigError, compile_model

pytestmark = needs_compile


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch would rather not script
        return torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))


class Holder(nn.Module):
    """Holds a layer, and cannot be called."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)


@pytest.mark.parametrize("regions", [None, "auto"])
def test_what_torch_has_compiled_is_refused_by_its_name(regions):
    with pytest.raises(ConfigError, match=r"torch\.jit has compiled. Give the module"):
        compile_model(scripted(), {"backend": "eager", "regions": regions})
    model = torch.compile(Stack(2), backend="eager")
    with pytest.raises(AlreadyCompiledError, match=r"OptimizedModule, which torch\.compile has"):
        compile_model(model, {"backend": "eager", "regions": regions})


def test_a_model_compiled_by_its_own_method_is_not_sent_to_a_handle_that_is_none(model):
    if not hasattr(model, "compile"):
        pytest.skip("this torch has no Module.compile")
    model.compile(backend="eager")
    with pytest.raises(AlreadyCompiledError, match=r"by its own compile\(\)") as caught:
        compile_model(model, {"backend": "eager"})
    assert "undo" not in str(caught.value)


@pytest.mark.parametrize("make", [nn.ModuleList, nn.ModuleDict, nn.ParameterList, Holder])
def test_a_model_that_cannot_be_called_is_refused_at_once(make):
    with pytest.raises(ConfigError, match=f"{make.__name__} has no forward to compile"):
        compile_model(make(), {"backend": "eager"})


def test_what_such_a_model_holds_is_compiled_by_regions(backend):
    model = nn.ModuleList([Toy(), Toy()])
    model.bias = nn.ParameterList([nn.Parameter(torch.ones(1))])
    handle = compile_model(model, {"backend": backend, "regions": ["*"]})
    model[1](torch.randn(2, 4))
    assert backend.calls == 1
    assert [region.name for region in handle.regions] == ["0", "1"]


def test_blocks_that_torch_has_compiled_are_left_to_it(backend):
    blocks = [nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)) for _ in range(3)]
    model = nn.Sequential(*(torch.compile(block, backend="eager") for block in blocks))
    compile_model(model, {"backend": backend, "regions": "auto"})
    model(torch.ones(1, 2))
