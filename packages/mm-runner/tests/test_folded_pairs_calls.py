"""``cfg['efficient_conv_bn_eval']``: forwards that do not always call both, or need not."""

import copy
import threading
import weakref
from typing import ClassVar

import pytest
import torch
from blocks import through_pickle
from test_folded_pairs import KEY, Head, Model, Watched, folded_twin, gradients, some_inputs
from torch import nn

from mm_runner import ConfigError
from mm_runner.model import apply_module_settings, told_module_settings
from mm_runner.model._folded_kernel import convolve_folded


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


class Layer(Head):
    """Calls its norm, or not, as its arguments say."""

    def forward(self, inputs, activate=True, norm=True):  # noqa: FBT002 - as users write
        hidden = self.conv(inputs)
        if norm:
            hidden = self.norm(hidden)
        return torch.tanh(hidden) if activate else hidden


# Which calls those are is told once.
told_once = pytest.mark.filterwarnings(
    "ignore:efficient_conv_bn_eval. .* is called with:UserWarning"
)


@told_once
@pytest.mark.parametrize("copied", [lambda one: one, copy.deepcopy, through_pickle])
def test_a_pair_of_calls_with_defaults_is_two_in_other_calls(copied, watched):
    model, folded = folded_twin(Model(Layer(), Layer()), "heads.*")
    assert told_module_settings(folded) == {KEY: "heads.0.conv, heads.1.conv"}
    folded, inputs = copied(folded), some_inputs()
    calls = [({"norm": False}, 0), ({}, 1), ({"activate": False}, 0), ({"norm": True}, 1)]
    for options, count in calls:
        watched.count = 0
        torch.testing.assert_close(
            folded.heads[0](inputs, **options), model.heads[0](inputs, **options)
        )
        assert watched.count == count
    watched.count = 0
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 2


class Adding(Head):
    """Does the same with its pair, whether it is given the others or not."""

    def forward(self, inputs, scale=None, *, shift=None):
        hidden = torch.tanh(self.norm(self.conv(inputs)))
        hidden = hidden if scale is None else hidden * scale
        return hidden if shift is None else hidden + shift


@told_once
@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 1),
        ({"scale": torch.tensor(2.0), "shift": torch.tensor(1.0)}, 1),
        ({"scale": None}, 1),
        ({"shift": torch.tensor(1.0)}, 0),
        ({"scale": 2.0, "shift": 1.0}, 0),
    ],
    ids=["without", "with", "none", "with-some", "with-numbers"],
)
def test_a_pair_is_one_in_calls_that_were_traced(options, count, watched):
    model, folded = folded_twin(Model(Adding()))
    inputs = some_inputs()
    torch.testing.assert_close(
        folded.heads[0](inputs, **options), model.heads[0](inputs, **options)
    )
    assert watched.count == count


class Outer(nn.Module):
    """Lets its caller take what its heads convolve."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([Head(), Head()])

    def forward(self, inputs, tap=None):
        return sum(head(inputs) if tap is None else tap(head, inputs) for head in self.heads)


def test_what_is_a_pair_in_each_call_of_its_caller_is_one_whatever_calls_that(watched):
    model, folded = folded_twin(Model(Outer()))
    inputs = some_inputs()
    torch.testing.assert_close(folded.heads[0](inputs), model.heads[0](inputs))
    assert watched.count == 2
    for tap, count in ((lambda head, one: head(one) + head.conv(one), 4), (Head.forward, 4)):
        torch.testing.assert_close(folded.heads[0](inputs, tap), model.heads[0](inputs, tap))
        assert watched.count == count


class Residual(Head):
    def forward(self, inputs, residual=None):
        hidden = self.conv(inputs)
        return self.norm(hidden) + (hidden if residual is None else residual)


class WithoutGradients(Head):
    def forward(self, inputs):
        hidden = self.conv(inputs)
        outputs = self.norm(hidden)
        return outputs if torch.is_grad_enabled() else outputs + hidden


@told_once
def test_what_goes_elsewhere_in_calls_of_one_form_is_folded_in_the_other(watched):
    model, folded = folded_twin(Model(Residual()))
    inputs = some_inputs()
    for residual, count in ((None, 0), (torch.ones(()), 1)):
        torch.testing.assert_close(
            folded.heads[0](inputs, residual), model.heads[0](inputs, residual)
        )
        assert watched.count == count
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 1


def test_what_goes_elsewhere_without_gradients_is_no_pair():
    with pytest.raises(ConfigError, match="no convolution in it gives its output to a batch norm"):
        apply_module_settings(Model(WithoutGradients()), {KEY: "heads.0"})


class Various(Head):
    """Calls them as it is told later."""

    how = "once"

    def forward(self, inputs):
        hidden = self.conv(inputs)
        if self.how == "twice":
            return self.norm(hidden) + self.norm(hidden)
        if self.how == "other":
            other = self.conv(2 * inputs)
            return self.norm(other) + self.norm(hidden)
        if self.how == "itself":
            self.how = "once"
            return self(inputs) + self.norm(hidden)
        return self.norm(hidden)


def test_a_norm_that_gets_it_twice_is_told():
    model, folded = folded_twin(Model(Various()))
    inputs = some_inputs()
    folded.heads[0].how = "twice"
    with pytest.raises(ConfigError, match=r"in Various, what 'conv' gave went twice to 'norm' in"):
        folded(inputs)
    folded.heads[0].how = "once"
    torch.testing.assert_close(folded(inputs), model(inputs))


@pytest.mark.parametrize("how", ["other", "itself"])
def test_only_what_is_on_its_way_to_the_norm_is_folded(how, watched):
    model, folded = folded_twin(Model(Various()))
    inputs = some_inputs()
    for one in (model, folded):
        one.heads[0].how = how
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 1


class Adapting(Head):
    """Does something to its parts while it computes, if it is told to later."""

    how = "as-traced"

    def forward(self, inputs):
        self.norm.train(self.how == "training")
        options = {"output_size": (12,)} if self.how == "sized" else {}
        hidden = self.norm(self.conv(inputs, **options))
        self.norm.eval()
        return hidden


@pytest.mark.parametrize("how", ["training", "sized"])
def test_what_is_decided_after_the_forward_began_counts(how, watched):
    model, folded = folded_twin(Model(Adapting()))
    for one in (model, folded):
        one.heads[0].how = how
    inputs = some_inputs()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 0


class Again(Head):
    """Calls one of the two once more, by itself."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, inputs):
        return self.norm(self.conv(inputs)) + getattr(self, self.part)(inputs).mean()


@pytest.mark.parametrize("part", ["conv", "norm"])
def test_a_part_that_is_called_twice_is_of_no_pair(part):
    with pytest.raises(ConfigError, match="no convolution in it gives its output to a batch norm"):
        apply_module_settings(Model(Again(part)), {KEY: "heads.0"})


class Freeing(Head):
    """Notes whether what its norm gave is there when nothing needs it any more."""

    def forward(self, inputs):
        hidden = self.norm(self.conv(inputs))
        self.hidden = weakref.ref(hidden) if isinstance(hidden, torch.Tensor) else None
        outputs = hidden + 1
        del hidden
        self.is_kept = self.hidden is not None and self.hidden() is not None
        return outputs


def test_what_was_given_is_not_kept(watched):
    _, folded = folded_twin(Model(Freeing()))
    with torch.no_grad():
        folded(some_inputs())
    assert watched.count == 1
    assert not folded.heads[0].is_kept


def test_parts_of_two_pairs_are_no_pair(watched):
    model, folded = folded_twin(Model(), ["heads.0", "heads.1"])
    for one in (model, folded):
        one.heads[0].norm = one.heads[1].norm
    inputs = some_inputs()
    torch.testing.assert_close(folded.heads[0](inputs), model.heads[0](inputs))
    assert watched.count == 0


def test_a_replica_of_data_parallel_computes_two(watched):
    model, folded = folded_twin(Model())
    replica = folded.heads[0]._replicate_for_data_parallel()
    inputs = some_inputs()
    torch.testing.assert_close(replica(inputs), model.heads[0](inputs))
    assert watched.count == 0


class Gathered(Head):
    """Has the weight of its norm only while that computes, as sharding does."""

    whole: ClassVar = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)

    def forward(self, inputs):
        hidden = self.conv(inputs)
        self.norm.weight.data = self.whole
        outputs = self.norm(hidden)
        self.norm.weight.data = self.whole[:0]
        return outputs


def test_a_norm_without_its_weight_is_computed_by_itself(watched):
    model, folded = folded_twin(Model(Gathered()))
    for one in (model, folded):
        one.heads[0].norm.weight.data = Gathered.whole[:0]
    inputs = some_inputs()
    with torch.no_grad():
        torch.testing.assert_close(folded(inputs), model(inputs))
    assert watched.count == 0


def test_what_the_kernel_is_multiplied_by_is_precise():
    torch.manual_seed(0)
    convolution = nn.Conv1d(1, 512, 1, bias=False).bfloat16()
    norm = nn.BatchNorm1d(512).bfloat16().eval()
    norm.running_var.uniform_(0.5, 2)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        got = convolve_folded(convolution, norm, torch.ones(1, 1, 1, dtype=torch.bfloat16))
        factor = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        # Rounded once.
        expected = (convolution.weight.flatten().double() * factor).bfloat16()
    assert (got.flatten() == expected).float().mean() > 0.99


def test_what_cannot_be_copied_is_told():
    model = Model()
    model.heads[0].lock = threading.Lock()
    with pytest.raises(
        ConfigError, match=r"'heads\.0' \(Head\) was given, and its forward is traced on a copy, wh"
    ):
        apply_module_settings(model, {KEY: "heads.0"})
