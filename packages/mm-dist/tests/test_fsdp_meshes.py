"""Layers split over tensor ranks, parameters sharded over data ranks."""

import contextlib

import pytest
import torch
from fsdp_models import Optim, needs_fully_shard, whole
from torch import nn

from mm_dist import ConfigError, MMFullyShardedDataParallel

pytestmark = needs_fully_shard

PLAN = {
    "embed": "rowwise",
    "layers.*.[qkv]": "colwise",
    "layers.*.?_norm": "head_norm",
    "layers.*.out": "rowwise",
    "layers.*.up": "colwise",
    "layers.*.down": "rowwise",
    "head": "colwise_gather",
}


def plan_of_objects():
    """Return a plan of torch's objects: between the layers each rank has a part of the sequence."""
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415 - not in old torch
    from torch.distributed.tensor.parallel import (  # noqa: PLC0415
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
    )

    colwise = ColwiseParallel(input_layouts=Shard(1))
    rowwise = RowwiseParallel(output_layouts=Shard(1))
    return {
        **PLAN,
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "layers.*.norm?": SequenceParallel(use_local_output=True),
        **dict.fromkeys(["layers.*.[qkv]", "layers.*.up"], colwise),
        **dict.fromkeys(["layers.*.out", "layers.*.down"], rowwise),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


class Layer(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, width // num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.q_norm, self.k_norm = nn.LayerNorm(self.head_dim), nn.LayerNorm(self.head_dim)
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width)

    def forward(self, hidden):
        inputs = self.norm1(hidden)
        q, k, v = (
            one(inputs).unflatten(-1, (-1, self.head_dim)) for one in (self.q, self.k, self.v)
        )
        parts = (one.transpose(1, 2) for one in (self.q_norm(q), self.k_norm(k), v))
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.down(self.up(self.norm2(hidden)).relu())


class Transformer(nn.Module):
    def __init__(self, width=8, num_heads=4):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(12, width)
        self.layers = nn.ModuleList(Layer(width, num_heads) for _ in range(1))
        self.head = nn.Linear(width, 12)

    def data_preprocessor(self, data, training):  # noqa: ARG002
        return data

    def forward(self, tokens, mode="loss"):
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        scores = self.head(hidden)
        if mode != "loss":
            return scores
        loss = nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        return {"loss": loss}

    def parse_losses(self, losses):
        return losses["loss"], {"loss": losses["loss"].detach()}


def batches(num_steps):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(12, (num_steps, 8, 4), generator=generator)


def sharded(plan=PLAN, *, data, model=None, **options):
    model = Transformer().double() if model is None else model
    mesh = {"data": data, "tensor": 4 // data}
    return MMFullyShardedDataParallel(
        model, auto_wrap_policy=["Layer"], mesh=mesh, plan=plan, **options
    )


def train(wrapper, optim, steps):
    """Return the losses over the whole batches, of which each data rank gets its share."""
    losses = []
    for tokens in steps:
        own = tokens.unflatten(0, (-1, wrapper.num_data_ranks))[:, wrapper.data_rank]
        loss = wrapper.train_step([own], optim)["loss"]
        torch.distributed.all_reduce(loss)
        losses.append(loss.item() / 4)
    return losses


class Alone(nn.Module):
    """The same steps in one process."""

    num_data_ranks, data_rank = 1, 0

    def __init__(self):
        super().__init__()
        self.module = Transformer().double()

    def no_sync(self):
        return contextlib.nullcontext()

    def train_step(self, data, optim):
        with optim.optim_context(self):
            loss, log_vars = self.module.parse_losses(self.module(*data))
        optim.update_params(loss)
        return log_vars


def assert_trained_alike(wrapper, alone):
    for name, value in alone.module.named_parameters():
        torch.testing.assert_close(whole(wrapper.module.get_parameter(name)), value)


def _as_one_process(rank):
    steps = batches(4)
    alone = Alone()
    expected = train(alone, Optim(alone, window=2), steps)
    for data in (1, 2, 4):
        wrapper = sharded(data=data)
        assert (wrapper.num_data_ranks, wrapper.data_rank) == (data, rank // (4 // data))
        assert wrapper.module.layers[0].q.weight.to_local().numel() == 64 // 4
        found = train(wrapper, Optim(wrapper, window=2), steps)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        assert_trained_alike(wrapper, alone)


def test_meshes_train_as_one_process(run_ranks):
    run_ranks(_as_one_process, 4)


def _states_fit_other_meshes(rank):
    alone = Alone()
    train(alone, Optim(alone), batches(3))
    wrapper = sharded(plan_of_objects(), data=2)
    optim = Optim(wrapper)
    train(wrapper, optim, batches(2))
    weights, state = wrapper.full_state_dict(), wrapper.optimizer_state_dict(optim.optimizer)
    assert set(weights) == (set(alone.module.state_dict()) if rank == 0 else set())
    other = sharded(data=1)
    other.load_full_state_dict(weights)
    other_optim = Optim(other)
    other.load_optimizer_state_dict(other_optim.optimizer, state)
    train(other, other_optim, batches(3)[2:])
    assert_trained_alike(other, alone)
    # And back: split by heads and by data again.
    wrapper.load_full_state_dict(other.full_state_dict())
    assert_trained_alike(wrapper, alone)


def test_objects_of_torch_split_sequences_and_states_fit_other_meshes(run_ranks):
    run_ranks(_states_fit_other_meshes, 4)


class Tied(Transformer):
    def __init__(self):
        super().__init__()
        self.head.weight = self.embed.weight


class Planned(Tied):
    """Brings a plan, whose embedding is tied."""

    def __init__(self):
        super().__init__()
        self._tp_plan = {
            "layers.*.up": "colwise",
            "layers.*.down": "rowwise",
            "head": "colwise_rep",
        }


def _refused_meshes(rank):  # noqa: ARG001
    def refused(match, *, model=None, **options):
        with pytest.raises(ConfigError, match=match):
            MMFullyShardedDataParallel(model or Transformer(), **options)

    mesh = {"data": 1, "tensor": 4}
    refused("does not fit 4 ranks", mesh={"data": 3, "tensor": 2}, plan=PLAN)
    refused("does not fit 4 ranks", mesh={"data": 2, "tensors": 2}, plan=PLAN)
    refused("without a plan", mesh=mesh)
    refused("plan goes with mesh", plan=PLAN)
    refused("leave out device_mesh", mesh=mesh, plan=PLAN, device_mesh=(4,))
    refused("strategy without copies", mesh=mesh, plan=PLAN, sharding_strategy="hybrid")
    refused(
        r"'layers.*.qq' matches no module; layers found: embed, layers.\*.q, layers.\*.k,",
        mesh=mesh,
        plan={"layers.*.qq": "colwise"},
    )
    refused("style 'colwize'; there are: colwise", mesh=mesh, plan={"head": "colwize"})
    refused("k_norm, a LayerNorm; 'colwise' splits", mesh=mesh, plan={"layers.*": "colwise"})
    refused("num_heads=2 heads, which", mesh=mesh, plan=PLAN, model=Transformer(8, 2))
    refused("10 features to split", mesh=mesh, plan=PLAN, model=Transformer(10, 5))
    refused("embed shares a parameter with head", mesh=mesh, plan=PLAN, model=Tied())
    refused("Transformer brings no plan", mesh=mesh, plan="auto")
    model = Planned()
    MMFullyShardedDataParallel(model, mesh=mesh, plan="auto")
    assert model.head.weight is model.embed.weight
    assert len(model.layers[0].up.weight.to_local()) == 24 // 4


def test_what_does_not_fit_is_refused(run_ranks):
    run_ranks(_refused_meshes, 4)
