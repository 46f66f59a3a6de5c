"""Classes that modules are given: what others do with them, and how long they last."""

import copy
import gc
import weakref

import pytest
import torch
from blocks import Block, SavedNumbers, through_pickle
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import mm_dist
from mm_runner.model import apply_module_settings, told_module_settings
from mm_runner.model._variants import own_class
from mm_runner.runner._compiling import RunCompiler

CHECKPOINTING, FOLDING = "activation_checkpointing", "efficient_conv_bn_eval"


def checkpointed(*blocks):
    model = nn.Sequential(*blocks)
    apply_module_settings(model, {CHECKPOINTING: "*"})
    return model


def saved_numbers(model, inputs):
    with SavedNumbers() as saved:
        model(inputs).sum().backward()
    return saved.count


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))

    def forward(self, inputs):
        return torch.tanh(self.layers(inputs)).square()


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_a_traced_module_is_copied_as_it_is(copied):
    model = checkpointed(torch.fx.symbolic_trace(Tower()))
    again = copied(model)
    assert isinstance(again[0], torch.fx.GraphModule)
    assert told_module_settings(again) == told_module_settings(model) == {CHECKPOINTING: "0"}
    inputs = torch.randn(2, 4)
    torch.testing.assert_close(again(inputs), model(inputs))
    assert saved_numbers(again, inputs) == saved_numbers(model, inputs) <= 8
    apply_module_settings(again, {})
    assert saved_numbers(again, inputs) > 8


def test_a_traced_module_may_change_its_graph():
    model = checkpointed(torch.fx.symbolic_trace(Tower()))
    traced, inputs = model[0], torch.randn(2, 4)
    expected = model(inputs)
    for node in traced.graph.nodes:
        if node.target == "square":
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    traced.recompile()
    assert told_module_settings(model) == {CHECKPOINTING: "0"}
    torch.testing.assert_close(model(inputs).square(), expected)
    assert saved_numbers(model, inputs) <= 8
    apply_module_settings(model, {})
    torch.testing.assert_close(model(inputs).square(), expected)


def test_a_traced_module_may_be_named_for_both_in_a_second_run():
    settings = {CHECKPOINTING: "0", FOLDING: "0"}
    model = nn.Sequential(torch.fx.symbolic_trace(nn.Sequential(Block(dropout=0.0)).eval())).eval()
    inputs = torch.randn(2, 4, 5)
    expected = model(inputs)
    for _ in range(2):
        apply_module_settings(model, settings)
        assert set(told_module_settings(model)) == set(settings)
        torch.testing.assert_close(model(inputs), expected)


def test_a_copy_by_a_method_of_the_users_is_a_variant_too():
    class Copies(Tower):
        def __deepcopy__(self, memo):
            assert type(self) is Copies
            made = Copies()
            made.load_state_dict(self.state_dict())
            return made

    model = checkpointed(Copies())
    again = copy.deepcopy(model)
    assert told_module_settings(again) == {CHECKPOINTING: "0"}
    inputs = torch.randn(2, 4)
    torch.testing.assert_close(again(inputs), model(inputs))


def test_parametrizations_find_the_class_that_they_expect():
    model = checkpointed(parametrizations.spectral_norm(nn.Linear(4, 4)).eval())
    linear, inputs = model[0], torch.randn(2, 4)
    expected = model(inputs)
    assert issubclass(parametrize.type_before_parametrizations(linear), nn.Linear)
    parametrize.register_parametrization(linear, "bias", nn.Identity())
    torch.testing.assert_close(copy.deepcopy(model)(inputs), expected)
    for name in ("weight", "bias"):
        parametrize.remove_parametrizations(linear, name)
    torch.testing.assert_close(model(inputs), expected)
    assert told_module_settings(model) == {CHECKPOINTING: "0"}
    apply_module_settings(model, {})
    assert type(model[0]) is nn.Linear


def test_a_parametrized_class_comes_back_as_it_was():
    model = checkpointed(parametrizations.spectral_norm(nn.Linear(4, 4)))
    parametrize.register_parametrization(model[0], "bias", nn.Identity())
    apply_module_settings(model, {})
    assert type(model[0]).__bases__ == (nn.Linear,)
    assert parametrize.is_parametrized(model[0], "bias")
    model(torch.randn(2, 4)).sum().backward()
    assert model[0].parametrizations.bias.original.grad is not None


def test_a_class_goes_with_its_modules():
    class Local(Tower):
        pass

    def names():
        model = checkpointed(torch.fx.symbolic_trace(Tower()), Local(), Local())
        assert type(model[1]) is type(model[2])
        assert own_class(model[1]) is Local
        return [weakref.ref(type(part)) for part in model]

    made = names()
    gc.collect()
    assert [one() for one in made] == [None] * 3


def test_what_an_earlier_run_made_hides_no_norm_from_synchronisation(tmp_path):
    model = nn.Sequential(Block())
    apply_module_settings(model, {FOLDING: "0"})
    info = mm_dist.DistInfo(0, 1, 0, 1, "none", "gloo", torch.device("cpu"))
    cfg = {"sync_bn": "torch", FOLDING: "0"}
    RunCompiler(None, tmp_path).wrap(model, cfg, info, lambda one: one)
    assert issubclass(own_class(model[0].norm), nn.SyncBatchNorm)
    assert told_module_settings(model) == {FOLDING: "0.conv"}
