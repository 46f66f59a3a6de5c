import copy

import pytest
import torch
from blocks import Block, Stack, Stages
from torch import nn
from toy import needs_compile

from mm_compile import AlreadyCompiledError, ConfigError, compile_model
from mm_compile._select import find_regions
from mm_compile._torch import shares_code


def names(model, regions="auto"):
    return [name for name, _ in find_regions(model, regions)]


def test_repeated_blocks_are_found_wherever_they_lie():
    assert names(Stack(3)) == ["blocks.0", "blocks.1", "blocks.2"]
    # Blocks of a ResNet's stages: the first of a stage has another size, and is a block too.
    assert names(Stages()) == [f"stages.{stage}.{block}" for stage in (0, 1) for block in (0, 1, 2)]
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    assert names(nn.Sequential(nn.Linear(8, 8), encoder)) == ["1.layers.0", "1.layers.1"]
    pairs = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2)]
    odd = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    assert names(nn.Sequential(*pairs, odd)) == ["0", "1"]


def test_single_layers_and_single_blocks_are_no_regions():
    assert names(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))) == []
    assert names(Stack(1)) == []


def test_blocks_that_hardly_repeat_are_left_to_the_whole():
    # As in a ResNet-18: four blocks of three kinds gain nothing one by one.
    first = nn.Sequential(Block(4, 4), Block(4, 4))
    model = nn.Sequential(first, nn.Sequential(Block(4, 8), Block(8, 8)))
    assert names(model) == []
    assert names(model, ["*.*"]) == ["0.0", "0.1", "1.0", "1.1"]


def test_patterns_choose_modules_and_the_outermost_win():
    assert names(Stack(3), ["blocks.[12]*"]) == ["blocks.1", "blocks.2"]
    assert names(Stack(2), ["head", "blocks.*"]) == ["blocks.0", "blocks.1", "head"]


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        (["block.*"], r"'block\.\*', which names no module of Stack"),
        (["blocks"], r"'blocks' is a ModuleList, which has no forward.*Write 'blocks\.\*'"),
    ],
)
def test_patterns_that_name_nothing_are_refused(regions, message):
    with pytest.raises(ConfigError, match=message):
        names(Stack(2), regions)


@needs_compile
def test_each_kind_is_compiled_once_and_shared(backend):
    model = Stages()
    eager = copy.deepcopy(model)
    keys = list(model.state_dict())
    before = [dict(vars(module)) for module in model.modules()]
    handle = compile_model(model, {"backend": backend, "regions": "auto"})
    inputs = torch.randn(5, 4)
    torch.testing.assert_close(model(inputs), eager(inputs))
    # Sizes 4 -> 4, 4 -> 8, 8 -> 8; before torch 2.5 every block has code of its own.
    assert backend.graphs == (3 if shares_code() else 6)
    assert backend.calls == 6
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(inputs), eager.eval()(inputs))
    assert backend.calls == 12
    assert list(model.state_dict()) == keys
    assert [region.name for region in handle.regions] == names(eager)
    assert all(region.is_compiled for region in handle.regions)
    with pytest.raises(AlreadyCompiledError, match="Block is compiled already"):
        compile_model(model, {"backend": backend, "regions": ["stages.0.1"]})
    twin = copy.deepcopy(model)
    twin(inputs)
    assert backend.calls == 12
    handle.undo()
    model.train()
    assert [dict(vars(module)) for module in model.modules()] == before


@needs_compile
def test_many_kinds_of_one_class_do_not_use_up_one_limit(backend):
    # Dynamo keeps eight versions of one function, and runs the ninth eagerly without a word.
    model = nn.Sequential(*(Block(4, 4, hidden=size) for size in range(2, 14)))
    compile_model(model, {"backend": backend, "regions": ["*"]})
    model(torch.randn(3, 4))
    assert (backend.graphs, backend.calls) == (12, 12)


@needs_compile
def test_a_model_without_repeated_blocks_is_compiled_whole(model, backend):
    handle = compile_model(model, {"backend": backend, "regions": "auto"})
    model(torch.randn(5, 4))
    assert [region.name for region in handle.regions] == [""]
    assert backend.calls == 1


@needs_compile
def test_several_methods_are_compiled(backend):
    model = Stack(1)
    handle = compile_model(model, {"backend": backend, "target": ["forward", "predict"]})
    inputs = torch.randn(5, 4)
    model(inputs)
    assert backend.calls == 1
    model.predict(inputs)
    assert backend.calls == 2
    assert [region.target for region in handle.regions] == ["forward", "predict"]
    handle.undo()
    model.predict(inputs)
    assert backend.calls == 2
