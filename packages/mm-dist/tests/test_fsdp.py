"""Sharded training on gloo ranks equals that of one process on all the data."""

import os
from types import SimpleNamespace

import pytest
import torch
from fsdp_models import Block, Net, Optim, needs_fully_shard, whole
from torch import nn

from mm_dist import ConfigError, MMFullyShardedDataParallel, is_model_wrapper

fsdp = pytest.importorskip("torch.distributed.fsdp")
pytestmark = needs_fully_shard
STEPS = 3


def _batches(world_size):
    """Return inputs of shape (steps, ranks, 2, 4)."""
    torch.manual_seed(1)
    return torch.randn(STEPS, world_size, 2, 4)


def _train_reference(batches, window=1):
    reference = Net()
    optim = torch.optim.AdamW([p for p in reference.parameters() if p.requires_grad], lr=0.01)
    for window_batches in batches.split(window):
        reference(window_batches.reshape(-1, 4))["loss"].backward()
        optim.step()
        optim.zero_grad()
    return reference


def _expect_equal(wrapper, reference):
    own = dict(wrapper.module.named_parameters())
    for name, expected in reference.named_parameters():
        torch.testing.assert_close(whole(own[name]), expected, msg=lambda m, n=name: f"{n}: {m}")


def _expect_shares(wrapper, optim, num_shards):
    """Each rank holds its part of parameters and of optimizer state, and nothing beside it."""
    for name, parameter in wrapper.module.named_parameters():
        chunk = -(-len(parameter) // num_shards)
        local = parameter.to_local()
        assert len(local) <= chunk, name
        assert local.untyped_storage().nbytes() <= 4 * chunk * parameter[:1].numel(), name
        moments = [v for v in optim.state.get(parameter, {}).values() if v.ndim]
        assert len(moments) == 2 * parameter.requires_grad
        assert all(moment.to_local().shape == local.shape for moment in moments), name


def _expect_training(rank, world_size, arguments):
    batches = _batches(world_size)
    net = Net()
    if rank:
        nn.init.zeros_(net.head.weight)
        net.scale.zero_()
    wrapper = MMFullyShardedDataParallel(net, **arguments)
    assert net.scale == 2, "begins with the first rank's values"
    optim = Optim(wrapper)
    for batch in batches:
        log_vars = wrapper.train_step({"inputs": batch[rank]}, optim)
        assert not isinstance(log_vars["loss"], float)
    reference = _train_reference(batches)
    _expect_equal(wrapper, reference)
    mesh = wrapper.device_mesh
    _expect_shares(wrapper, optim.optimizer, mesh.size(mesh.ndim - 1))
    return wrapper, sum(isinstance(module, fsdp.FSDPModule) for module in net.modules())


def _expect_strategies(rank):
    blocks = {"auto_wrap_policy": ["Block"]}
    wrapper, num_groups = _expect_training(rank, 2, blocks)
    assert num_groups == 4
    assert wrapper.sharding_strategy == "full"
    assert wrapper.module.stem.weight.to_local().shape == ((3, 4), (2, 4))[rank]
    assert is_model_wrapper(wrapper)
    assert is_model_wrapper(wrapper.module)
    # Between forward and backward, the outermost group stays gathered, and the others do not.
    loss = wrapper(torch.ones(2, 4))["loss"]
    assert not hasattr(wrapper.module.stem.weight, "placements")
    assert hasattr(wrapper.module.blocks[0].up.weight, "placements")
    loss.backward()

    for name in ("SHARD_GRAD_OP", "grad-op"):
        wrapper, _ = _expect_training(rank, 2, {**blocks, "sharding_strategy": name})
        assert wrapper.sharding_strategy == "grad-op"
    wrapper, num_groups = _expect_training(rank, 2, {"sharding_strategy": "NO_SHARD"})
    assert num_groups == 1
    assert wrapper.module.stem.weight.to_local().shape == (5, 4)

    wrapper, _ = _expect_training(rank, 2, {**blocks, "cpu_offload": True})
    assert not wrapper.module.stem.weight.to_local().is_pinned()
    group = torch.distributed.new_group([0, 1])
    wrapper, _ = _expect_training(rank, 2, {"process_group": group})
    assert wrapper.device_mesh.get_group() is not torch.distributed.group.WORLD


def test_training_on_shards_equals_training_on_all_data(run_ranks):
    run_ranks(_expect_strategies, 2)


def _expect_loading(rank, wrapper):
    """The first rank's state reaches all copies and all shards."""
    full = {name: tensor + 1 for name, tensor in wrapper.full_state_dict().items()}
    assert bool(full) == (rank == 0)
    expected = {name: whole(tensor) + 1 for name, tensor in wrapper.state_dict().items()}
    wrapper.load_full_state_dict(full)
    for name, tensor in wrapper.state_dict().items():
        assert torch.equal(whole(tensor), expected[name]), name


def _expect_hybrid(rank):
    _expect_training(rank, 4, {"auto_wrap_policy": ["Block"]})
    wrapper, _ = _expect_training(rank, 4, {"auto_wrap_policy": ["Block"], "device_mesh": (2, 2)})
    assert wrapper.sharding_strategy == "hybrid"
    assert wrapper.module.stem.weight.to_local().shape == ((3, 4), (2, 4))[rank % 2]
    members = [
        torch.distributed.get_process_group_ranks(wrapper.device_mesh.get_group(i)) for i in (0, 1)
    ]
    assert members == [[rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]]
    _expect_loading(rank, wrapper)

    # As torchrun sets them for two machines with two ranks each.
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE="4",
        LOCAL_RANK=str(rank % 2),
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="localhost",
        MASTER_PORT="1",
    )
    wrapper, _ = _expect_training(rank, 4, {"sharding_strategy": "_HYBRID_SHARD_ZERO2"})
    assert wrapper.sharding_strategy == "hybrid-grad-op"
    assert wrapper.device_mesh.mesh.tolist() == [[0, 1], [2, 3]]

    os.environ["LOCAL_RANK"] = str(rank // 2)  # machine by machine is what torchrun never breaks
    with pytest.raises(ConfigError, match=r"needs machines with equally many ranks.*\(0, 2\), \(0"):
        MMFullyShardedDataParallel(Net(), sharding_strategy="hybrid")


def test_hybrid_training_equals_training_on_all_data(run_ranks):
    run_ranks(_expect_hybrid, 4)


def _expect_accumulation(rank):
    batches = _batches(2)
    wrapper = MMFullyShardedDataParallel(Net(), auto_wrap_policy=["Block"])
    optim = Optim(wrapper, window=STEPS)
    for step, batch in enumerate(batches):
        wrapper.train_step({"inputs": batch[rank]}, optim)
        if step < STEPS - 1:
            gradient = wrapper.module.stem.weight.grad
            assert gradient is None, "exchanged within the window"
    _expect_equal(wrapper, _train_reference(batches, window=STEPS))

    # Contexts may nest: the inner one must not switch the exchange on for the outer one.
    with wrapper.no_sync():
        with wrapper.no_sync():
            pass
        wrapper(batches[0][rank])["loss"].backward()
    assert wrapper.module.stem.weight.grad is None
    wrapper(batches[1][rank])["loss"].backward()

    # Torch's clipping sees the gradients of all ranks.
    reference = _train_reference(batches, window=STEPS)
    (reference(batches[0].reshape(-1, 4))["loss"] * 1).backward()
    reference(batches[1].reshape(-1, 4))["loss"].backward()
    expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
    norm = nn.utils.clip_grad_norm_(wrapper.parameters(), 0.1)
    torch.testing.assert_close(norm.full_tensor(), expected)
    torch.testing.assert_close(
        wrapper.module.stem.weight.grad.full_tensor(), reference.stem.weight.grad
    )
    # A stale optimizer would leave the model as it is.
    with pytest.raises(ConfigError, match="holds parameters from before the model was sharded"):
        wrapper.train_step({"inputs": batches[0][rank]}, Optim(Net()))
    several = SimpleNamespace(param_groups={"generator": Optim(Net()).param_groups})
    with pytest.raises(ConfigError, match="before the model was sharded"):
        wrapper.train_step({"inputs": batches[0][rank]}, several)
    _expect_evaluation(wrapper, batches[0][rank])


def _expect_evaluation(wrapper, inputs):
    reference = Net()
    reference.load_state_dict({n: whole(t) for n, t in wrapper.state_dict().items()})
    with torch.no_grad():
        expected = reference(inputs, mode="predict")
        # Without a val_step the model's forward predicts.
        torch.testing.assert_close(wrapper.val_step({"inputs": inputs}), expected)
        torch.testing.assert_close(wrapper.test_step({"inputs": inputs}), expected)
        torch.testing.assert_close(wrapper(inputs, mode="predict"), expected)
    # A model's own step may use its layers directly.
    module = wrapper.module
    module.val_step = lambda data: module.head(module.stem(data))
    with torch.no_grad():
        torch.testing.assert_close(wrapper.val_step(inputs), reference.head(reference.stem(inputs)))
    assert all(hasattr(parameter, "placements") for parameter in wrapper.parameters())
    assert list(wrapper.state_dict()) == list(reference.state_dict())


def test_accumulation_clipping_and_evaluation_equal_those_of_one_process(run_ranks):
    run_ranks(_expect_accumulation, 2)


@pytest.mark.usefixtures("group_of_one")
def test_steps_of_a_single_rank_need_the_same_methods():
    wrapper = MMFullyShardedDataParallel(nn.Sequential(Block(4)))
    with pytest.raises(AttributeError, match="has no attribute 'data_preprocessor'"):
        wrapper.train_step({}, Optim(wrapper))
    with pytest.raises(AttributeError, match="has no attribute 'data_preprocessor'"):
        wrapper.test_step({})
