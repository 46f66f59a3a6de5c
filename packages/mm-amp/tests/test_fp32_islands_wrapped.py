"""Islands under DDP, under FSDP2 and its casting policies, and in compiled models."""

import copy

import pytest
import torch
from conftest import is_autocast_on
from torch import nn

from mm_amp import AmpOptimWrapper, ConfigError, add_fp32_islands, autocast

_shards_on_cpu = hasattr(torch, "compiler") and hasattr(torch.compiler, "nested_compile_region")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.seen = None

    def forward(self, features, *, shift=None):
        features = self.linear(self.norm(features))
        self.seen = (features.dtype, (features @ features.T).dtype)
        return features if shift is None else features + shift


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Block()
        self.head = nn.Sequential(Block(), Block())

    def forward(self, inputs):
        return self.head(self.body(inputs, shift=inputs))


_HALF, _FULL = (torch.bfloat16,) * 2, (torch.float32,) * 2


def _seen(net):
    return [block.seen for block in (net.body, *net.head)]


def _train(net, model, dtype="bfloat16"):
    """Train two steps with the head in float32; return what the blocks computed in."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = AmpOptimWrapper(optimizer, dtype=dtype, fp32_modules=["head"])
    wrapper.initialize_count_status(model, 0, 2)
    for step in range(2):
        inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
        with wrapper.optim_context(model):
            loss = model(inputs).float().square().mean()
        assert wrapper.update_params(loss).stepped
    assert not is_autocast_on()
    return _seen(net)


def _reference(net):
    """Return parameters after the same training of one process."""
    single = copy.deepcopy(net)
    assert _train(single, single) == [_HALF, _FULL, _FULL]
    return list(single.parameters())


def _full(parameters):
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parameters]


def _assert_equal(parameters, expected):
    for ours, theirs in zip(_full(parameters), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def _expect_islands_under_ddp(_rank):
    torch.manual_seed(0)
    net = Net()
    expected = _reference(net)
    model = nn.parallel.DistributedDataParallel(net)
    assert _train(net, model) == [_HALF, _FULL, _FULL]
    _assert_equal(net.parameters(), expected)
    with pytest.raises(ConfigError, match="did you mean 'head'"):
        add_fp32_islands(model, "haed")


def _expect_islands_under_fsdp2(_rank):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415 - new

    torch.manual_seed(0)
    net = Net()
    expected = _reference(net)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)

    plain = copy.deepcopy(net)
    fully_shard(plain.head)
    fully_shard(plain)
    assert _train(plain, plain) == [_HALF, _FULL, _FULL]
    _assert_equal(plain.parameters(), expected)

    # Its own policy leaves the island's weights in float32; that of the root casts the rest.
    alone = copy.deepcopy(net)
    fully_shard(alone.head)
    fully_shard(alone, mp_policy=policy)
    assert _train(alone, alone) == [_HALF, _FULL, _FULL]
    for ours, theirs in zip(_full(alone.parameters()), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=3e-2, atol=3e-2)

    for parts in ((), ("head",), ("head.0.linear", "head.1")):
        cast = copy.deepcopy(net)
        for name in parts:
            fully_shard(cast.get_submodule(name), mp_policy=policy)
        fully_shard(cast, mp_policy=policy)
        with pytest.raises(ConfigError, match=r"has torch.bfloat16 parameters.*shard it by itself"):
            _train(cast, cast)


def _expect_islands_on_ranks(rank):
    _expect_islands_under_ddp(rank)
    if _shards_on_cpu:  # from some version after torch 2.6
        _expect_islands_under_fsdp2(rank)


def test_islands_under_ddp_and_fsdp2(rank_pool):
    rank_pool.run(_expect_islands_on_ranks)


needs_compile = pytest.mark.skipif(
    not hasattr(torch, "compile"), reason="torch.compile came with torch 2.0"
)


@pytest.fixture
def compiled():
    """A model and its compiled form; the compiler's caches are emptied."""
    pytest.importorskip("torch._dynamo").reset()
    net = Net()
    yield lambda **options: (net, torch.compile(net, backend="eager", **options))
    torch._dynamo.reset()


def _dtypes_of(net, model):
    with autocast("cpu", "bfloat16"):
        output = model(torch.ones(2, 4))
    output.float().sum().backward()
    assert net.head[0].linear.weight.grad is not None
    return _seen(net)


def _output(model):
    with autocast("cpu", "bfloat16"):
        return model(torch.ones(2, 4))


@needs_compile
@pytest.mark.filterwarnings("ignore")  # old compilers warn of much, about themselves
def test_islands_come_and_go_after_compilation(compiled):
    net, model = compiled()
    assert _dtypes_of(net, model) == [_HALF, _HALF, _HALF]
    islands = add_fp32_islands(model, "head")
    assert islands.names == ("head",)
    assert _dtypes_of(net, model) == [_HALF, _FULL, _FULL]
    assert torch.equal(_output(model), _output(net))
    islands.undo()
    assert _dtypes_of(net, model) == [_HALF, _HALF, _HALF]
