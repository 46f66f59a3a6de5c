"""What sharded parameters hold: initial values, tied ones, dtypes."""

import pytest
import torch
from fsdp_models import Block, Net, Optim, needs_fully_shard, whole
from torch import nn

from mm_dist import ConfigError, MMFullyShardedDataParallel

pytestmark = needs_fully_shard


class Tied(nn.Module):
    """An embedding that is the output layer too, and a layer that stands in two blocks."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.second = nn.Sequential(self.first[0], nn.LayerNorm(4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.second(self.first(self.embed(tokens)))).square().mean()


def _expect_tied_training(rank, *, is_meta):
    torch.manual_seed(rank)
    with torch.device("meta" if is_meta else "cpu"):
        model = Tied()
    wrapper = MMFullyShardedDataParallel(
        model, auto_wrap_policy=[nn.Embedding, "Sequential", "head", "second.1"]
    )
    assert model.head.weight is model.embed.weight
    assert model.first[0].weight is model.second[0].weight
    assert type(model.second[1]).__name__ == "FSDPLayerNorm"

    reference = Tied()
    reference.load_state_dict({n: whole(t) for n, t in wrapper.state_dict().items()})
    assert not reference.embed.weight.isnan().any()
    tokens = torch.tensor([[0, 1], [5, 6]])
    optims = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (wrapper, reference)]
    for _ in range(2):
        wrapper(tokens[rank]).backward()
        reference(tokens.flatten()).backward()
        for optim in optims:
            optim.step()
            optim.zero_grad()
    for name, expected in reference.named_parameters():
        torch.testing.assert_close(whole(model.get_parameter(name)), expected)


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.block = Block(4)
        self.seen = {}
        for name in ("convolution", "norm", "block"):
            layer = getattr(self, name)
            layer.register_forward_hook(self._note(name))

    def _note(self, name):
        def note(layer, inputs, outputs):
            weight = next(layer.parameters())
            self.seen[name] = inputs[0].dtype, weight.dtype, outputs.dtype

        return note

    def forward(self, images):
        self.seen["input"] = images.dtype
        features = self.second(self.norm(self.convolution(images))).mean((2, 3))
        self.seen["features"] = features.dtype
        return self.block(features)


def _expect_precision(rank):
    model = Convolutional()
    wrapper = MMFullyShardedDataParallel(
        model,
        auto_wrap_policy=["Block"],
        mixed_precision={
            "param_dtype": "bfloat16",
            "reduce_dtype": "float32",
            "output_dtype": "torch.float32",
        },
    )
    outputs = wrapper(torch.randn(2, 3, 5, 5) + rank)
    outputs.square().mean().backward()
    low, high = torch.bfloat16, torch.float32
    assert outputs.dtype == high
    assert model.seen == {
        "input": low,
        "convolution": (low, low, low),
        # Batch normalization keeps its precision, and gives back what it was given.
        "norm": (high, high, high),
        "features": low,
        "block": (low, low, low),
    }
    assert {p.dtype for p in wrapper.parameters()} == {p.grad.dtype for p in wrapper.parameters()}
    assert model.norm.running_mean.dtype == model.convolution.weight.dtype == high

    # Values that bfloat16 cannot hold tell in which precision gradients were summed.
    for reduce_dtype, expected in (("float32", 257.0), (None, 256.0)):
        layer = nn.Linear(1, 1, bias=False)
        wrapper = MMFullyShardedDataParallel(
            layer,
            mixed_precision={
                "param_dtype": torch.bfloat16,
                "reduce_dtype": reduce_dtype,
            },
        )
        wrapper(torch.tensor([[2.0 if rank else 512.0]])).sum().backward()
        assert whole(layer.weight.grad).item() == expected


def _expect_one_group_at_a_time():
    """A model on the meta device is never there as a whole: beside shards, one group is."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    size = sum(parameter.numel() for parameter in model.parameters())
    held = []

    def fill(layer):
        layer.reset_parameters()
        own = [p.to_local() if hasattr(p, "placements") else p for p in model.parameters()]
        held.append(sum(p.untyped_storage().nbytes() // 4 for p in own if not p.is_meta))

    wrapper = MMFullyShardedDataParallel(model, auto_wrap_policy="Linear", param_init_fn=fill)
    assert held == [size // 8 + done * size // 16 for done in range(8)]
    wrapper(torch.ones(1, 64))


def _expect_values(rank):
    for is_meta in (False, True):
        _expect_tied_training(rank, is_meta=is_meta)
    _expect_precision(rank)

    _expect_one_group_at_a_time()

    # Replicas agree though every rank draws its own numbers; batch normalization has buffers.
    torch.manual_seed(rank)
    with torch.device("meta"):
        model = Convolutional()
    wrapper = MMFullyShardedDataParallel(model, device_mesh=(2, 1), auto_wrap_policy=["Block"])
    own = wrapper.full_state_dict()
    assert {tensor.device.type for tensor in own.values()} == ({"cpu"} if rank == 0 else set())
    weights = model.convolution.weight.to_local().detach()
    everybodys = [torch.empty_like(weights) for _ in range(2)]
    torch.distributed.all_gather(everybodys, weights)
    assert torch.equal(*everybodys)
    assert model.norm.num_batches_tracked == 0

    # Without it, each rank keeps what it has.
    model = Net()
    with torch.no_grad():
        model.stem.weight.fill_(rank)
    wrapper = MMFullyShardedDataParallel(model, sync_module_states=False)
    assert whole(model.stem.weight)[:, 0].tolist() == [0, 0, 0, 1, 1]


def test_values_are_right_on_all_ranks(run_ranks):
    run_ranks(_expect_values, 2)


@pytest.mark.usefixtures("group_of_one")
def test_modules_on_the_meta_device_are_initialized_by_a_function():
    def fill(module):
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.fill_(len(called))
        called.append(type(module).__name__)

    called = []
    with torch.device("meta"):
        model = Net()
    wrapper = MMFullyShardedDataParallel(model, auto_wrap_policy="Block", param_init_fn=fill)
    assert called == ["Linear"] * 7 + ["Linear", "Net"]
    assert whole(model.blocks[0].up.weight).unique().tolist() == [0]
    assert not model.head.bias.requires_grad
    wrapper.train_step({"inputs": torch.ones(1, 4)}, Optim(wrapper))


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (None, r"Nothing has initialized .* of Net, .* pass param_init_fn"),
        (nn.Module.eval, r"Nothing has initialized weight, bias of Linear"),
    ],
    ids=["no-method", "no-values"],
)
@pytest.mark.usefixtures("group_of_one")
def test_modules_left_without_values_are_named(init, message):
    with torch.device("meta"):
        model = Net()
    with pytest.raises(ConfigError, match=message):
        MMFullyShardedDataParallel(model, auto_wrap_policy="Block", param_init_fn=init)


@pytest.mark.usefixtures("group_of_one")
def test_number_buffers_left_without_values_are_named():
    class Positions(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("positions", torch.arange(4))

    with torch.device("meta"):
        model = Positions()
    with pytest.raises(ConfigError, match="Nothing has initialized positions of"):
        MMFullyShardedDataParallel(model)
