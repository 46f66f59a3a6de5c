import copy
import pickle
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from conftest import DTYPES, is_autocast_on
from torch import nn

from mm_amp import AmpOptimWrapper, ConfigError, add_fp32_islands, autocast

_NOT_FLOAT32 = (AssertionError, RuntimeError)  # of the op below, or of an old torch's own


class _Float32Op(torch.autograd.Function):
    """Takes float32 only, forward and backward, as many custom kernels do."""

    @staticmethod
    def forward(_ctx, values):
        assert values.dtype == torch.float32, f"expected Float but found {values.dtype}"
        return values * 2

    @staticmethod
    def backward(_ctx, gradient):
        assert gradient.dtype == torch.float32
        return gradient * 2


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.seen = []

    def forward(self, features, *, scale=None):
        # A product without weights would run in half precision if autocast were on.
        self.seen = [features.dtype, (features @ features.T).dtype, is_autocast_on()]
        features = self.linear(self.norm(features))
        return _Float32Op.apply(features if scale is None else features * scale)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.head = Head()

    def forward(self, inputs):
        return self.head(self.stem(inputs), scale=self.stem(inputs))


_NET = Net()


@pytest.fixture
def net():
    return copy.deepcopy(_NET)


_INPUTS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_island_runs_in_float32_forward_and_backward(net, dtype):
    add_fp32_islands(net, "head")
    with autocast("cpu", dtype):
        output = net(_INPUTS)
        assert is_autocast_on()
    assert output.dtype == torch.float32
    assert net.head.seen == [torch.float32, torch.float32, False]
    output.sum().backward()

    by_hand = copy.deepcopy(_NET)
    with autocast("cpu", dtype):
        features, scale = by_hand.stem(_INPUTS).float(), by_hand.stem(_INPUTS).float()
    expected = by_hand.head(features, scale=scale)
    expected.sum().backward()
    assert torch.equal(output, expected)
    for ours, theirs in zip(net.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_undo_makes_an_ordinary_module_again(net):
    islands = add_fp32_islands(net, ["head", "*.norm"])
    assert islands.names == ("head", "head.norm")
    assert repr(islands) == "Fp32Islands(head, head.norm)"
    islands.undo()
    islands.undo()
    assert vars(net.head).keys() == vars(_NET.head).keys()
    assert vars(net.head.norm).keys() == vars(_NET.head.norm).keys()
    with autocast("cpu", "bfloat16"), pytest.raises(_NOT_FLOAT32, match="expected"):
        net(_INPUTS)


def _through_pickle(net):
    return pickle.loads(pickle.dumps(net))  # noqa: S301 - its own


@pytest.mark.parametrize("duplicate", [copy.deepcopy, _through_pickle])
def test_copy_is_an_island_with_its_own_weights(net, duplicate):
    add_fp32_islands(net, "head")
    copied = duplicate(net)
    with torch.no_grad():
        copied.head.linear.weight.zero_()
        copied.head.linear.bias.fill_(1.0)
    with autocast("cpu", "bfloat16"):
        output = copied.head(torch.ones(2, 4, dtype=torch.bfloat16))
        kept = net.head(torch.ones(2, 4, dtype=torch.bfloat16))
    assert torch.equal(output, torch.full((2, 4), 2.0))
    assert copied.head.seen[0] == torch.float32
    assert not torch.equal(kept, output)


Point = namedtuple("Point", ["x", "label"])  # noqa: PYI024 - the plain kind is what models return


@dataclass(frozen=True)
class Boxes:
    corners: torch.Tensor
    name: str


class Outputs(OrderedDict):
    pass


def test_nested_arguments_are_cast_and_not_changed():
    half, whole, count = torch.ones(2).bfloat16(), torch.ones(2).double(), torch.ones(2).long()
    given = [half, (half.half(), "text"), {"a": half, "b": whole, "c": count, "d": None}]
    others = [Point(half, 3), Boxes(half, "car"), Outputs(a=half)]
    untouched = [(whole,), {"c": count}, Boxes(whole, "bus"), object()]
    seen = {}

    class Recorder(nn.Module):
        def forward(self, *args, **kwargs):
            seen.update(args=args, kwargs=kwargs)

    model = nn.ModuleDict({"recorder": Recorder()})
    add_fp32_islands(model, "recorder")
    model["recorder"](given, *others, untouched=untouched, half=half)

    first, (second, text), mapping = seen["args"][0]
    float32 = torch.float32
    assert (first.dtype, second.dtype, text) == (float32, float32, "text")
    assert mapping["a"].dtype == float32
    assert mapping["b"] is whole
    assert mapping["c"] is count
    point, boxes, outputs = seen["args"][1:]
    assert (type(point), point.x.dtype, point.label) == (Point, float32, 3)
    assert (type(boxes), boxes.corners.dtype, boxes.name) == (Boxes, float32, "car")
    assert (type(outputs), outputs["a"].dtype) == (Outputs, float32)
    assert seen["kwargs"]["untouched"] is untouched
    assert seen["kwargs"]["half"].dtype == float32
    assert given[0] is half
    assert given[2]["a"] is half
    assert others[1].corners is half


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            "haed",
            r"holds 'haed', which .* module of Net; did you mean 'head'\? It has stem, head, hea",
        ),
        (
            ["head", "*.bias"],
            r"'\*\.bias', .*of Net\. It has stem, head, head\.norm, head\.lin",
        ),
        ("norm", r"did you mean 'head\.norm'\? It has"),
        ("", "holds ''; it takes glob"),
        ([nn.LayerNorm], r"holds <class .*LayerNorm'>; it takes glob patterns"),
        (3, "holds 3; it takes glob patterns"),
    ],
)
def test_pattern_that_matches_nothing_is_an_error(net, patterns, message):
    with pytest.raises(ConfigError, match=message):
        add_fp32_islands(net, patterns)
    assert "forward" not in vars(net.head)


def test_model_and_device_must_be_what_they_say(net):
    with pytest.raises(
        ConfigError, match="fp32_modules names modules of the model, which is a int"
    ):
        add_fp32_islands(3, "head")
    with pytest.raises(ConfigError, match="device_type is 'abacus'"):
        add_fp32_islands(net, "head", device_type="abacus")


def test_names_are_those_inside_wrappers(net):
    wrapped = nn.ModuleDict({"module": nn.ModuleDict({"_orig_mod": net})})
    assert add_fp32_islands(wrapped, ["head"]).names == ("head",)
    assert add_fp32_islands(wrapped, ["module._orig_mod.head.norm"]).names == ("head.norm",)


def test_wrapper_checks_the_patterns_as_soon_as_it_can(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="holds 3"):
        AmpOptimWrapper(optimizer, dtype="bfloat16", fp32_modules=[3])
    wrapper = AmpOptimWrapper(optimizer, dtype="bfloat16", fp32_modules="haed")
    with pytest.raises(ConfigError, match="did you mean 'head'"):
        wrapper.initialize_count_status(net, 0, 10)
    with pytest.raises(ConfigError, match="did you mean 'head'"), wrapper.optim_context(net):
        pass
    assert not is_autocast_on()


def test_half_precision_weights_of_an_island_are_an_error():
    model = nn.ModuleDict({"linear": nn.Linear(4, 4).bfloat16()})
    add_fp32_islands(model, "linear")
    with pytest.raises(ConfigError, match=r"'linear' has torch.bfloat16 parameters; keep them"):
        model["linear"](torch.ones(2, 4))
    assert not is_autocast_on()
