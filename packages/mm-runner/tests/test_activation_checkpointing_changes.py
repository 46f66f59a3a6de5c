"""What may change around a checkpointed forward, and what is refused."""

import pytest
import torch
from blocks import SHARDS, SINCE_2_6, whole
from layers import Layers, expect_same, trained, within
from torch import nn

import mm_runner.model._noted_tensors
from mm_runner import ConfigError
from mm_runner.model import apply_module_settings

LARGE = 1 << 17  # is not copied in each step
# Before torch 2, errors of a repetition come within one of its own.
REFUSED = (ConfigError, RuntimeError)


class Queue(Layers):
    """A buffer that its owner changes after the forward, as a queue of negatives."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("queue", torch.ones(size))

    def between(self, hidden):
        return hidden * self.queue[:4].clone()


def enqueue(model):
    model[0].queue.mul_(1.5)


@pytest.mark.parametrize("change", [enqueue, lambda model: model[0].queue.data.mul_(1.5)])
@pytest.mark.parametrize("size", [4, LARGE])
def test_a_buffer_that_changes_before_each_backward_pass_is_as_it_was(size, change):
    expect_same(*within(Queue(size)), between=change)


def test_a_large_buffer_may_change_before_each_of_several_forwards():
    found = []
    for model in within(Queue(LARGE)):
        inputs = torch.arange(32.0).reshape(8, 4) / 32
        for _ in range(3):
            losses = []
            for _ in range(2):
                enqueue(model)
                losses.append(model(inputs).square().sum())
            sum(losses).backward()
        found.append([one.grad for one in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_large_buffer_that_changes_before_a_later_backward_pass_is_refused():
    _, other = within(Queue(LARGE))
    trained(other)
    with pytest.raises(REFUSED, match=r"'0' has a buffer, 'queue', of more than 65,536.*after"):
        trained(other, between=enqueue)


class Embeds(Layers):
    """The weight that comes first changes in the forward, and would change a little if repeated."""

    def __init__(self, kind):
        super().__init__()
        self.first = kind(8, 4, max_norm=0.3)
        self.bags = kind is nn.EmbeddingBag

    def forward(self, inputs):
        numbers = torch.arange(8)
        return super().forward(numbers[:, None] if self.bags else numbers) + 0 * inputs


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_are_rescaled_to_a_norm_may_come_first(kind, frozen):
    model, other = within(Embeds(kind))
    expect_same(model, other)
    assert other[0].first.max_norm == 0.3
    for one in (model, other):
        one[0].first.weight.data.mul_(10)
        one[0].first.weight.requires_grad_(not frozen)
        one(torch.zeros(8, 4)).square().sum().backward()
    torch.testing.assert_close(dict(other.named_parameters()), dict(model.named_parameters()))


def test_an_embedding_that_others_share_is_rescaled_too():
    class Tied(Embeds):
        def __init__(self):
            super().__init__(nn.Embedding)
            self.same = nn.Linear(4, 8, bias=False)
            self.same.weight = self.first.weight

    expect_same(*within(Tied()))


class Codebook(Layers):
    """Codes that follow what comes, changed by ``change``."""

    def __init__(self, change, *, frozen):
        super().__init__()
        self.table = nn.Embedding(1, 4).requires_grad_(not frozen)
        self.codes = self.table.weight
        self.change = change

    def between(self, hidden):
        before = self.codes.detach().clone()
        with torch.no_grad():
            self.change(self, hidden.mean(0))
        return hidden * before


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("change", [
    lambda block, mean: block.codes.add_(mean),
    lambda block, mean: block.codes.data.add_(mean),
])  # fmt: skip
def test_a_parameter_that_every_forward_changes_is_as_it_was(change, frozen):
    expect_same(*within(Codebook(change, frozen=frozen)))


def replace(block, mean):
    block.codes = nn.Parameter(block.codes + mean)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_parameter_that_the_forward_replaces_is_refused(frozen):
    _, other = within(Codebook(replace, frozen=frozen))
    with pytest.raises(ConfigError, match=r"'0' puts another parameter in place of 'codes'"):
        other(torch.randn(8, 4))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda block, mean: block.codes.add_(mean), "'0' changes 'codes', a parameter.*not kept"),
        (replace, "'0' puts another parameter in place of 'codes'"),
    ],
)
def test_a_parameter_that_a_later_forward_changes_first_is_refused(change, message, frozen):
    model, other = within(Codebook(lambda *_: None, frozen=frozen))
    expect_same(model, other)
    other[0].change = change
    other[0].table.requires_grad_(not frozen)
    with pytest.raises(ConfigError, match=message) as caught:
        other(torch.randn(8, 4))
    is_advised = "register_buffer" in str(caught.value)
    assert is_advised == (frozen and change is not replace)  # what is trained cannot be a buffer


def test_parameters_that_are_not_numbers_do_not_count_as_changed():
    model, other = within(Codebook(lambda *_: None, frozen=True))
    for one in (model, other):
        one[0].codes.data[:, 1:] = float("nan")
        one(torch.ones(8, 4)).sum().backward()
    gradients = [[one.grad for one in net.parameters()] for net in (model, other)]
    torch.testing.assert_close(*gradients, rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_layers_are_to_begin_before_training():
    other = nn.Sequential(nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()))
    apply_module_settings(other, {"activation_checkpointing": "0"})
    with pytest.raises(ConfigError, match=r"'0' has lazy modules.*once without gradients"):
        other(torch.ones(8, 4))
    with torch.no_grad():
        other(torch.ones(8, 4))
    other(torch.ones(8, 4)).sum().backward()


class Gathers(nn.Module):
    """Holds nothing of its weight until it is needed, as what is sharded in place."""

    def __init__(self):
        super().__init__()
        self.weight, self.whole = nn.Parameter(torch.zeros(0)), torch.eye(4)

    def forward(self, inputs):
        self.weight.data = self.whole
        return torch.tanh(inputs @ self.weight)


def test_a_parameter_that_is_gathered_in_place_does_not_count_as_changed():
    found = []
    for model in within(Gathers()):
        model(torch.ones(8, 4)).square().sum().backward()
        found.append([one.grad for one in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


class Shares(Layers):
    """Two buffers over one memory."""

    def __init__(self, *, changes):
        super().__init__()
        self.register_buffer("stats", torch.ones(2, 4))
        self.register_buffer("scale", self.stats[1])
        self.changes = changes

    def between(self, hidden):
        if self.changes:
            self.stats.mul_(1.5)
        return hidden * self.scale.clone()


def test_buffers_that_share_memory_are_refused_if_one_changes():
    model, other = within(Shares(changes=False))
    for one in (model, other):  # copies share nothing
        one[0].scale = one[0].stats[1]
    expect_same(model, other)
    other[0].changes = True  # seen later, too
    with pytest.raises(ConfigError, match=r"changes its buffers 'stats' and 'scale', which share"):
        other(torch.randn(8, 4))


def test_buffers_that_share_memory_are_compared_in_the_first_step_only(monkeypatch):
    _, other = within(Shares(changes=False))
    other[0].scale = other[0].stats[1]
    trained(other, steps=1)
    monkeypatch.setattr(mm_runner.model._noted_tensors, "is_equal", None)  # would wait for a GPU
    trained(other, steps=1)


class Complex(Layers):
    """The real and the imaginary part of one memory, of which one changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("real", torch.ones(4))
        self.register_buffer("imaginary", torch.ones(4))

    def between(self, hidden):
        hidden = hidden * self.real.clone() + self.imaginary.clone()
        self.real.mul_(0.5)
        return hidden


def test_buffers_that_lie_between_the_numbers_of_each_other_share_nothing():
    model, other = within(Complex())
    for one in (model, other):  # copies are not interleaved
        both = torch.ones(4, 2)
        one[0].real, one[0].imaginary = both.unbind(1)
    expect_same(model, other)


class Sums(nn.Module):
    """Has inputs in containers, of which its forward takes some out and adds others."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs, *, memory=(), more=None):
        for one in memory:
            inputs = inputs + one
        outputs = torch.tanh(self.layer(inputs + more["x"].pop().pop()))
        more["y"] = outputs
        if isinstance(memory, list):
            memory.append(outputs)
        return outputs


def test_containers_that_a_forward_changes_are_changed_once_and_repeated_as_they_were():
    found = []
    for model in within(Sums()):
        more = {"x": [[torch.ones(4)], [torch.full((4,), 3.0)]]}
        memory = [torch.ones(8, 4, requires_grad=True)]
        outputs = model[0](torch.ones(8, 4), memory=memory, more=more)
        outputs.square().sum().backward(retain_graph=True)
        outputs.sum().backward()
        assert [len(memory), len(more["x"]), list(more)] == [2, 1, ["x", "y"]]
        found.append([outputs, memory[0].grad, *[one.grad for one in model[0].parameters()]])
    torch.testing.assert_close(*found, rtol=0, atol=0)


class Reads(Layers):
    def forward(self, inputs, *, memory=None):
        return super().forward(inputs) + sum(memory["all"])


@pytest.mark.parametrize("memory", [
    lambda one: {"all": [one]}, lambda one: {"all": (one,)},
])  # fmt: skip
def test_inputs_in_containers_that_change_before_the_backward_pass_are_refused(memory):
    _, other = within(Reads())
    one = torch.zeros(8, 4)
    loss = other[0](torch.randn(8, 4), memory=memory(one)).sum()
    one.add_(1)
    with pytest.raises(REFUSED, match="'0' has an input that was changed in place between"):
        loss.backward()


def test_an_input_that_changes_before_the_backward_pass_is_refused():
    _, other = within(Layers())
    inputs = torch.randn(8, 4) * 1.0
    loss = other(inputs).sum()
    inputs.add_(1)
    # By torch itself, where that keeps inputs for the backward pass.
    with pytest.raises((ConfigError, RuntimeError), match=r"in ?place"):
        loss.backward()


@pytest.mark.skipif(not SINCE_2_6, reason="an early torch 2 does not move inputs away")
def test_an_input_that_was_moved_away_may_change():
    found = []
    for model in within(Layers()):
        inputs = torch.ones(8, 4).mul_(0.5).add_(0.1)
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept):
            loss = model(inputs).square().sum()
        inputs.zero_()
        loss.backward()
        found.append([one.grad for one in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


class Adds(Layers):
    def forward(self, inputs, *, memory):
        one = memory["one"] if isinstance(memory, dict) else memory[0]
        one.add_(1)
        return super().forward(inputs) + one.clone()


@pytest.mark.parametrize("memory", [[torch.zeros(4)], {"one": torch.zeros(4)}])
def test_inputs_within_containers_are_watched_too(memory):
    _, other = within(Adds())
    with pytest.raises(ConfigError, match="changes one of its inputs in place"):
        other[0](torch.randn(8, 4), memory=memory)


def test_a_module_that_changes_its_input_is_refused_in_the_first_step():
    _, other = within(nn.Sequential(nn.LeakyReLU(0.2, inplace=True), nn.Linear(4, 4)))
    with pytest.raises(ConfigError, match=r"^activation_checkpointing: '0' changes one of its inp"):
        other(torch.randn(8, 4) * torch.ones(4, requires_grad=True))


def test_other_parameters_in_the_backward_pass_are_refused():
    func = pytest.importorskip("torch.func")
    _, other = within(Layers())
    doubled = {name: one.detach() * 2 for name, one in other.named_parameters()}
    doubled = {name: one.requires_grad_() for name, one in doubled.items()}
    loss = func.functional_call(other, doubled, torch.randn(8, 4)).sum()
    with pytest.raises(ConfigError, match=r"'0' has another 'first\.weight' in the backward pass"):
        loss.backward()


@pytest.mark.skipif(not SHARDS, reason="torch shards on the CPU since 2.8")
@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("early", [False, True])
def test_parameters_that_are_gathered_for_the_backward_pass_are_the_same(early):
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    mesh = init_device_mesh("cpu", (1,))
    found = []
    for model in within(nn.Sequential(Layers(), Layers())):
        for part in (*model[0], model):
            fully_shard(part, mesh=mesh)
        for _ in range(2):
            for part in model[0] if early else ():
                part.unshard()
            model(torch.ones(8, 4)).square().sum().backward()
        found.append([whole(one.grad) for one in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_parameter_that_was_changed_before_the_backward_pass_is_refused():
    _, other = within(Layers())
    loss = other(torch.randn(8, 4)).sum()
    with torch.no_grad():
        other[0].first.weight.mul_(2)
    with pytest.raises(REFUSED, match=r"'first\.weight', that was changed"):
        loss.backward()
