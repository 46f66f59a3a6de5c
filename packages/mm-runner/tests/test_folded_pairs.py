"""``cfg['efficient_conv_bn_eval']``: where pairs are one convolution, and where they stay two."""

import copy
import pickle
import random
import types

import pytest
import torch
from blocks import SHARDS, through_pickle
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.checkpoint import checkpoint

from mm_runner import ConfigError
from mm_runner.model import apply_module_settings, told_module_settings

KEY = "efficient_conv_bn_eval"


class Head(nn.Module):
    def __init__(self, conv=None, norm=None):
        super().__init__()
        self.conv = conv or nn.ConvTranspose1d(4, 4, 3, stride=2)
        self.norm = norm or nn.BatchNorm1d(4)
        self.has_norm = True
        self.checkpointed, self.reentrant = None, False

    def forward(self, inputs):
        if self.checkpointed is not None:
            return self.checkpointed_forward(inputs)
        hidden = self.conv(inputs)
        return torch.tanh(self.norm(hidden)) if self.has_norm else hidden

    def checkpointed_forward(self, inputs):
        if self.checkpointed == "failing":
            self.conv(inputs)
            raise ValueError("not now")
        options = {"use_reentrant": self.reentrant}
        if self.checkpointed == "both":
            return checkpoint(
                lambda hidden: torch.tanh(self.norm(self.conv(hidden))), inputs, **options
            )
        if self.checkpointed == "norm":
            return torch.tanh(checkpoint(self.norm, self.conv(inputs), **options))
        hidden = checkpoint(self.conv, inputs, **options)
        if self.checkpointed == "conv":
            return torch.tanh(self.norm(hidden))
        return checkpoint(lambda one: torch.tanh(self.norm(one)).square(), hidden, **options)

    def by_keyword(self, inputs):
        return torch.tanh(self.norm(input=self.conv(input=inputs)))


def _nothing(model, inputs):  # noqa: ARG001 - as others are
    return 0


class Model(nn.Module):
    """Heads, and what a model may do to their parts besides calling the heads."""

    def __init__(self, *heads):
        super().__init__()
        self.heads = nn.ModuleList(heads or (Head(), Head()))
        self.use = _nothing

    def forward(self, inputs):
        return sum(head(inputs) for head in self.heads) + self.use(self, inputs)


def folded_twin(model, names="heads.0"):
    """Return the model with other statistics than a new one, and a folded copy, in eval mode."""
    model.double().eval()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)
    folded = copy.deepcopy(model)
    apply_module_settings(folded, {KEY: names})
    return model, folded


def some_inputs():
    return torch.randn(2, 4, 5, dtype=torch.float64)


def gradients(model, inputs):
    model.zero_grad()
    outputs = model(inputs)
    outputs.square().sum().backward()
    return [outputs, *[one.grad for one in model.parameters()]]


class Watched:
    """Counts how often a model convolves as if it were the normalisation too."""

    def __init__(self, monkeypatch):
        from mm_runner.model import _conv_bn  # noqa: PLC0415 - where it is used

        self.count, self._convolve = 0, _conv_bn.convolve_folded
        monkeypatch.setattr(_conv_bn, "convolve_folded", self)

    def __call__(self, *args):
        self.count += 1
        return self._convolve(*args)


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def shared(**parts):
    return Model(*(Head(**parts) for _ in range(3)))


OTHER_USES = [
    lambda model, inputs: model.heads[0].conv(inputs),
    lambda model, inputs: model.heads[0].norm(inputs).mean(),
    lambda model, inputs: model.heads[0].by_keyword(inputs),
    lambda model, inputs: (
        model.heads[0].norm(model.heads[0].conv(inputs, output_size=(12,))).mean()
    ),
    lambda model, inputs: type(model.heads[0].conv)(4, 4, 3, stride=2).double()(inputs) * 0,
    lambda model, inputs: type(model.heads[0].norm)(4).double()(inputs).sum() * 0,
]


@pytest.mark.parametrize("use", OTHER_USES)
def test_outside_the_forward_that_calls_both_they_are_themselves(use, watched):
    model, folded = folded_twin(Model())
    model.use = folded.use = use
    inputs = some_inputs()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 1  # in that forward


@pytest.mark.parametrize("part", ["conv", "norm"])
def test_a_part_that_others_share_is_folded_for_one_of_them(part, watched):
    made = {"conv": nn.ConvTranspose1d(4, 4, 3, stride=2), "norm": nn.BatchNorm1d(4)}[part]
    model, folded = folded_twin(shared(**{part: made}))
    inputs = some_inputs()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 1
    with pytest.raises(ConfigError, match=rf"'heads\.0\.{part}' and 'heads\.1\.{part}' are one"):
        apply_module_settings(model, {KEY: "heads.*"})
    assert told_module_settings(model) == {}
    torch.testing.assert_close(model(inputs), folded(inputs))


def test_a_pair_that_several_forwards_call_is_folded_in_each(watched):
    parts = {"conv": nn.ConvTranspose1d(4, 4, 3, stride=2), "norm": nn.BatchNorm1d(4)}
    model, folded = folded_twin(shared(**parts), "heads.*")
    inputs = some_inputs()
    torch.testing.assert_close(gradients(folded, inputs), gradients(model, inputs))
    assert watched.count == 3


def test_a_forward_that_leaves_the_norm_out_is_told_and_not_wrong():
    model, folded = folded_twin(Model())
    inputs = some_inputs()
    expected = model(inputs)
    folded.heads[0].has_norm = False
    with pytest.raises(ConfigError, match=r"in Head, what 'conv' gave did not go to 'norm'"):
        folded(inputs)
    folded.heads[0].has_norm = True
    torch.testing.assert_close(folded(inputs), expected)


def test_a_forward_that_fails_leaves_nothing_behind(watched):
    model, folded = folded_twin(Model())
    inputs = some_inputs()
    folded.heads[0].checkpointed = "failing"
    with pytest.raises(ValueError, match="not now"):
        folded(inputs)
    folded.heads[0].checkpointed = None
    torch.testing.assert_close(folded.heads[0].conv(inputs), model.heads[0].conv(inputs))
    torch.testing.assert_close(folded(inputs), model(inputs))
    assert watched.count == 2


def _doubled(module):
    forward = module.forward
    module.forward = lambda inputs: 2 * forward(inputs)


@pytest.mark.parametrize("part", ["conv", "norm"])
def test_a_forward_of_its_own_is_called(part, watched):
    model, folded = folded_twin(Model())
    for one in (model, folded):
        _doubled(getattr(one.heads[0], part))
    inputs = some_inputs()
    torch.testing.assert_close(folded(inputs), model(inputs))
    assert watched.count == 0
    patched = Model()
    module = getattr(patched.heads[0], part)
    module.forward = types.MethodType(lambda _, inputs: inputs, module)
    with pytest.raises(ConfigError, match="no convolution in it gives"):
        apply_module_settings(patched, {KEY: "heads.0"})


def _backward_hook(model, part, seen):
    module = getattr(model.heads[0], part)
    return module.register_full_backward_hook(lambda _, __, outputs: seen.extend(outputs))


def _input_hook(model, part, seen):
    module = getattr(model.heads[0], part)
    return module.register_forward_hook(lambda _, inputs, outputs: seen.extend((*inputs, outputs)))


def _global_hook(_, part, seen):
    kind = {"conv": nn.ConvTranspose1d, "norm": nn.BatchNorm1d}[part]

    def note(module, inputs, outputs):
        if isinstance(module, kind):
            seen.extend((*inputs, outputs))

    return register_module_forward_hook(note)


def _head_of_holders():
    """Return a head that calls modules which only hold its convolution and its norm."""
    return Head(nn.Sequential(nn.Conv1d(4, 4, 1)), nn.Sequential(nn.BatchNorm1d(4)))


@pytest.mark.parametrize("part", ["conv", "norm"])
@pytest.mark.parametrize(
    ("hook", "head"),
    [
        (_backward_hook, Head),
        (_input_hook, Head),
        (_global_hook, Head),
        (_backward_hook, _head_of_holders),
        (_input_hook, _head_of_holders),
    ],
)
def test_hooks_see_what_they_always_do(hook, head, part, watched):
    found = []
    inputs = some_inputs().requires_grad_()
    for one in folded_twin(Model(head())):
        found.append([])
        handle = hook(one, part, found[-1])
        gradients(one, inputs)
        handle.remove()
    torch.testing.assert_close(*found)
    assert watched.count == 0
    gradients(one, inputs)
    assert watched.count == 1


def test_pickles_of_a_part_hold_that_part_and_copies_of_the_whole_are_folded(watched):
    model, folded = folded_twin(Model())
    folded(some_inputs())
    watched.count = 0
    assert b"ConvTranspose1d" not in pickle.dumps(folded.heads[0].norm)
    inputs = some_inputs()
    for number, again in enumerate((copy.deepcopy(folded), through_pickle(folded)), 1):
        torch.testing.assert_close(gradients(again, inputs), gradients(model, inputs))
        assert watched.count == number
    norm = copy.deepcopy(folded.heads[0].norm)
    torch.testing.assert_close(norm(inputs), model.heads[0].norm(inputs))


class Drawing(Head):
    def forward(self, inputs):
        self.drawn = (random.random(), torch.rand(1), _numpy().random.rand())  # noqa: S311
        return super().forward(inputs)


def _numpy():
    return pytest.importorskip("numpy")


def test_no_random_numbers_are_drawn():
    states = []
    for names in (None, "heads.0"):
        random.seed(0)
        torch.manual_seed(0)
        _numpy().random.seed(0)
        model = Model(Drawing())
        apply_module_settings(model, {KEY: names})
        states.append((random.random(), torch.rand(1).item(), _numpy().random.rand()))  # noqa: S311
    assert states[0] == states[1]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_weight_that_is_computed_before_each_forward_counts(watched):
    conv = nn.utils.weight_norm(nn.Conv1d(4, 4, 1))
    model = Model(Head(conv))
    model.eval().heads[0].norm.running_mean.fill_(3)
    inputs = torch.randn(2, 4, 5)
    expected = model(inputs)
    apply_module_settings(model, {KEY: "heads.0"})
    torch.testing.assert_close(model(inputs), expected)
    assert watched.count == 1


def _in_two_units(rank, _):  # noqa: ARG001 - as all that run on ranks
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - since torch 2.6

    torch.manual_seed(0)
    found = []
    for one in folded_twin(Model(Head(nn.Conv1d(4, 4, 1), nn.Sequential(nn.BatchNorm1d(4))))):
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        fully_shard(one.heads[0].norm, mesh=mesh)
        fully_shard(one, mesh=mesh)
        outputs = one(torch.ones(2, 4, 5, dtype=torch.float64))
        outputs.square().sum().backward()
        found.append([outputs, *[p.grad.full_tensor() for p in one.parameters()]])
    torch.testing.assert_close(*found)


@pytest.mark.skipif(not SHARDS, reason="torch shards on the CPU since 2.8")
def test_a_norm_that_is_sharded_by_itself_is_computed_by_itself(run_ranks, tmp_path):
    run_ranks(_in_two_units, 2, tmp_path)
