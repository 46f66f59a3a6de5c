"""``cfg['efficient_conv_bn_eval']`` where parts of a model are computed again in backward."""

import copy

import pytest
import torch
from test_folded_pairs import (
    KEY,
    Head,
    Model,
    Watched,
    folded_twin,
    gradients,
    shared,
    some_inputs,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from mm_runner import ConfigError
from mm_runner.model import apply_module_settings, told_module_settings
from mm_runner.model._settings import planned_module_settings

CHECKPOINTING = "activation_checkpointing"


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def both(model, **settings):
    """Return the model, and a copy of it with these settings."""
    model, _ = folded_twin(model)
    other = copy.deepcopy(model)
    apply_module_settings(other, settings)
    return model, other


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("part", ["conv", "norm"])
def test_a_part_that_is_repeated_elsewhere_is_itself_there(part, reentrant, watched):
    model, folded = folded_twin(Model(Head(nn.Conv1d(4, 4, 1))))
    model.use = folded.use = lambda one, inputs: checkpoint(
        getattr(one.heads[0], part), inputs, use_reentrant=reentrant
    )
    inputs = some_inputs().requires_grad_()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 1


@pytest.mark.parametrize("again", ["heads.*", ["heads.1", "heads.2"], "heads.0"])
@pytest.mark.parametrize("part", ["conv", "norm"])
def test_a_shared_part_is_repeated_as_each_head_called_it(part, again, watched):
    made = {"conv": nn.ConvTranspose1d(4, 4, 3, stride=2), "norm": nn.BatchNorm1d(4)}[part]
    model, other = both(shared(**{part: made}), **{KEY: "heads.0", CHECKPOINTING: again})
    inputs = some_inputs().requires_grad_()
    torch.testing.assert_close(gradients(other, inputs), gradients(model, inputs))
    assert watched.count == (1 if isinstance(again, list) else 2)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("where", ["both", "each", "conv"])
def test_what_is_repeated_without_its_caller_stays_two(where, reentrant, watched):
    model, folded = folded_twin(Model())
    for one in (model, folded):
        one.heads[0].checkpointed, one.heads[0].reentrant = where, reentrant
    inputs = some_inputs().requires_grad_()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_norm_that_is_repeated_without_its_convolution_is_told(reentrant):
    model, folded = folded_twin(Model())
    inputs = some_inputs().requires_grad_()
    folded.heads[0].checkpointed, folded.heads[0].reentrant = "norm", reentrant
    with pytest.raises(ConfigError, match=r"in Head, 'norm' is called within torch\.utils\.checkp"):
        folded(inputs)
    folded.heads[0].checkpointed = None
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))


@pytest.mark.parametrize("part", ["conv", "norm"])
def test_a_half_that_is_checkpointed_by_setting_is_left_out(part, watched):
    settings = {KEY: ["heads.0", "heads.1"], CHECKPOINTING: f"heads.0.{part}"}
    model, other = both(Model(), **settings)
    told = {KEY: "heads.1.conv", CHECKPOINTING: f"heads.0.{part}"}
    assert told_module_settings(other) == told
    assert planned_module_settings(model, settings) == told
    inputs = some_inputs().requires_grad_()
    torch.testing.assert_close(gradients(other, inputs), gradients(model, inputs))
    assert watched.count == 1
    with pytest.raises(
        ConfigError, match=r"'heads\.0\.conv' and 'heads\.0\.norm' cannot be.*Checkpoint 'heads\.0'"
    ):
        apply_module_settings(other, {**settings, KEY: "heads.0"})


class Unusual(torch.autograd.Function):
    """Repeats what it is given, as checkpointing of other packages does."""

    @staticmethod
    def forward(ctx, call, inputs):
        ctx.call = call
        ctx.save_for_backward(inputs)
        return call(inputs)

    @staticmethod
    def backward(ctx, grads):
        inputs = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.call(inputs).backward(grads)
        return None, inputs.grad


class Repeats(Head):
    def forward(self, inputs):
        if not isinstance(inputs, torch.Tensor):  # while it is traced
            return super().forward(inputs)
        return torch.tanh(self.norm(Unusual.apply(self.conv, inputs)))


def test_a_convolution_that_is_repeated_by_others_is_itself(watched):
    model, folded = folded_twin(Model(Repeats()))
    inputs = some_inputs().requires_grad_()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 0


class Stage(nn.Module):
    """Repeats a head, and has two optional arguments."""

    def __init__(self):
        super().__init__()
        self.head = Head()

    def forward(self, inputs, scale=1.0, shift=None):
        outputs = scale * checkpoint(self.head, inputs, use_reentrant=False)
        return outputs if shift is None else outputs + shift


def test_a_head_that_is_repeated_in_a_call_of_which_nothing_is_known_is_one(watched):
    model, folded = folded_twin(Model(Stage()))
    inputs = some_inputs().requires_grad_()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 2
    results = []
    for one in (model, folded):
        one.zero_grad()
        one.heads[0](inputs, scale=2.0).sum().backward()
        results.append([parameter.grad for parameter in one.heads[0].parameters()])
    torch.testing.assert_close(*results)
    assert watched.count == 4


class Telling(Head):
    def forward(self, inputs):
        hidden = self.conv(inputs)
        return self.norm(hidden), hidden


class Silent(nn.Module):
    """Uses the half of what its head gives, and repeats that."""

    def __init__(self):
        super().__init__()
        self.head = Telling()

    def forward(self, inputs):
        return checkpoint(self.head, inputs, use_reentrant=False)[0]


def test_what_is_a_pair_for_its_caller_only_is_two_where_it_is_repeated_without_that(watched):
    model, folded = folded_twin(Model(Silent()))
    inputs = some_inputs().requires_grad_()
    with pytest.warns(UserWarning, match=r"Telling is called without optional arguments\. Of such"):
        torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 0
