"""Checkpointed modules are of classes of ours, which nobody else has to notice."""

import abc
import copy
import pickle
import types

import pytest
import torch
from blocks import Block, Net, SavedNumbers
from layers import Layers, within
from torch import nn

from mm_runner import ConfigError
from mm_runner.model import apply_module_settings, told_module_settings
from mm_runner.model._variants import make_variant, own_class

KEY = "activation_checkpointing"
REGISTERED = {}


class Registering(nn.Module):
    def __init_subclass__(cls, *, name, **kwargs):
        super().__init_subclass__(**kwargs)
        assert name not in REGISTERED
        REGISTERED[name] = cls


class Registered(Registering, name="registered"):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs):
        return torch.tanh(self.layer(inputs))


class Metaclass(abc.ABCMeta):
    def __new__(cls, name, bases, namespace, **kwargs):
        made = super().__new__(cls, name, bases, namespace, **kwargs)
        assert name not in REGISTERED
        REGISTERED[name] = made
        return made


class ByMetaclass(Block, metaclass=Metaclass):
    pass


class Reduces(Registered, name="reduces"):
    def __reduce__(self):
        return type(self), (), {"training": self.training}


class Calls(Registered, name="calls"):
    def __call__(self, inputs):
        return self.layer(inputs)


def checkpointed(*blocks):
    model = nn.Sequential(*blocks)
    apply_module_settings(model, {KEY: "*"})
    return model


@pytest.mark.parametrize("kind", [Registered, ByMetaclass])
def test_registries_of_classes_do_not_see_them(kind):
    before = dict(REGISTERED)
    model = checkpointed(kind())
    assert told_module_settings(model) == {KEY: "0"}
    assert isinstance(model[0], kind)
    assert before == REGISTERED


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", [Registered, Reduces, ByMetaclass])
def test_they_are_pickled_as_the_class_would_be(kind, protocol):
    model = checkpointed(kind()).eval()
    again = pickle.loads(pickle.dumps(model, protocol=protocol))  # noqa: S301 - our own
    assert told_module_settings(again) == {KEY: "0"}
    assert not again[0].training
    assert told_module_settings(model) == {KEY: "0"}
    again(torch.randn(2, 4, 4)).sum().backward()
    apply_module_settings(again, {})
    assert type(again[0]) is kind


def test_a_parametrization_that_comes_later_stays():
    model = checkpointed(nn.Linear(4, 4))
    nn.utils.parametrizations.orthogonal(model[0])
    weight = model[0].weight.detach()
    assert own_class(model[0]).__bases__ == (nn.Linear,)
    apply_module_settings(model, {})
    assert told_module_settings(model) == {}
    assert type(model[0]).__bases__ == (nn.Linear,)
    torch.testing.assert_close(model[0].weight.detach(), weight)
    model(torch.randn(2, 4)).sum().backward()


def test_auto_takes_blocks_whose_layers_are_parametrized():
    def block():
        return nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.LayerNorm(4)
        )

    model = nn.Sequential(block(), block())
    apply_module_settings(model, {KEY: "auto"})
    assert told_module_settings(model) == {KEY: "0, 1"}


def test_what_is_done_twice_is_done_once():
    model = checkpointed(Block())
    kind = type(model[0])
    apply_module_settings(model, {KEY: ["0", "0"]})
    assert type(model[0]) is kind
    make_variant(model[0], kind.variant_mixin)
    assert type(model[0]) is kind


def test_an_error_leaves_nothing_half_done():
    class Rigid(Block):
        def __setattr__(self, name, value):
            if name == "__class__" and value is not Rigid:
                raise TypeError("rigid")
            super().__setattr__(name, value)

    model = nn.Sequential(Block(), Rigid())
    with pytest.raises(TypeError, match="rigid"):
        apply_module_settings(model, {KEY: "*"})
    assert told_module_settings(model) == {}
    assert [type(block) for block in model] == [Block, Rigid]


def test_a_forward_or_call_of_its_own_is_told():
    block = Block()
    block.forward = types.MethodType(Block.forward, block)
    with pytest.raises(ConfigError, match=r"'0' cannot be checkpointed, for its forward was repl"):
        checkpointed(block)
    with pytest.raises(ConfigError, match=r"'0' cannot be.*its class Calls has a __call__ of its"):
        checkpointed(Calls())
    traced = torch.fx.symbolic_trace(Registered())
    assert told_module_settings(checkpointed(traced)) == {KEY: "0"}
    with SavedNumbers() as saved:
        checkpointed(traced)(torch.randn(2, 4))
    assert saved.count <= 8  # the input


def test_each_name_of_a_module_names_it():
    model = Net()
    model.same = model.blocks[1]
    model = copy.deepcopy(model)
    apply_module_settings(model, {KEY: "same"})
    assert told_module_settings(model) == {KEY: "blocks.1"}


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.error = nn.Linear(4, 4), ValueError("of the module")

    def forward(self, inputs):
        outputs = torch.tanh(self.layer(inputs))
        if self.error is not None:
            raise self.error
        return outputs


def test_a_forward_that_fails_takes_in_nothing_that_is_computed_afterwards():
    model = nn.Sequential(Fails(), nn.Linear(4, 1))
    apply_module_settings(model, {KEY: "0"})
    with pytest.raises(ValueError, match="of the module") as caught:
        model(torch.ones(2, 4))
    model[0].error = None
    one = torch.ones(2, requires_grad=True)
    one.square().sum().backward()
    assert caught.value.__traceback__ is not None  # it keeps the frames that it came through
    assert one.grad.tolist() == [2, 2]


class Stages(nn.ModuleDict):
    """Returns what each stage gives, as detectors want it of a backbone."""

    def forward(self, inputs):
        outputs = {}
        for name, stage in self.items():
            inputs = outputs[name] = stage(inputs)
        return outputs


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Stages({"first": Block(), "second": Block()})
        self.parts = nn.Module()
        self.parts.head = nn.Linear(4, 4)

    def forward(self, inputs):
        return self.parts.head(sum(self.backbone(inputs).values()))


@pytest.mark.parametrize("key", [KEY, "efficient_conv_bn_eval"])
def test_a_container_with_a_forward_of_its_own_can_be_named(key):
    torch.manual_seed(0)
    model = Detector().eval()
    named = copy.deepcopy(model)
    apply_module_settings(named, {key: "backbone"})
    assert "backbone" in told_module_settings(named)[key]
    inputs = torch.randn(2, 4, 4)
    for one in (model, named):
        one(inputs).square().sum().backward()
    for expected, value in zip(model.parameters(), named.parameters(), strict=True):
        torch.testing.assert_close(value.grad, expected.grad)


def test_a_module_that_only_holds_others_cannot_be_named():
    with pytest.raises(ConfigError, match=r"'parts' names a Module, which has no forward"):
        apply_module_settings(Detector(), {KEY: "parts"})


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_a_part_of_torch_jit_is_refused(how):
    block = Layers()
    block.last = (
        torch.jit.script(block.last)
        if how == "script"
        else torch.jit.trace(block.last, torch.ones(8, 4))
    )
    model = nn.Sequential(block, nn.Linear(4, 4))
    with pytest.raises(ConfigError, match=r"'0' cannot be checkpointed.*'last' was.*outside of"):
        apply_module_settings(model, {"activation_checkpointing": "0"})


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_part_of_torch_jit_that_comes_later_is_refused_in_the_forward():
    _, other = within(Layers())
    other[0].last = torch.jit.script(other[0].last)
    with pytest.raises(ConfigError, match=r"'0' has a scripted or traced part, 'last'.*outside of"):
        other(torch.ones(8, 4))
