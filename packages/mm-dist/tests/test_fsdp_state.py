"""The state of sharded models and optimizers: whole, sharded, on other numbers of ranks."""

import pytest
import torch
from fsdp_models import Net, Optim, needs_fully_shard, whole
from torch import nn

from mm_dist import ConfigError, MMFullyShardedDataParallel

dcp = pytest.importorskip("torch.distributed.checkpoint")
dcp_state = pytest.importorskip("torch.distributed.checkpoint.state_dict")
pytestmark = needs_fully_shard
INPUTS = torch.arange(8.0).view(2, 4) / 10
CONFIGS = {
    "full": {"auto_wrap_policy": ["Block"]},
    "hybrid": {"auto_wrap_policy": ["Block"], "device_mesh": (2, 1)},
    "offloaded": {"cpu_offload": True},
}


def _trained(arguments, steps=2):
    wrapper = MMFullyShardedDataParallel(Net(), **arguments)
    optim = Optim(wrapper)
    for _ in range(steps):
        wrapper.train_step({"inputs": INPUTS}, optim)
    return wrapper, optim


def _expect_same(first, second):
    pairs = zip(first.named_parameters(), second.named_parameters(), strict=True)
    for (name, one), (_, other) in pairs:
        assert torch.equal(whole(one.detach()), whole(other.detach())), name


def _expect_round_trips(rank, folder):
    for name, arguments in CONFIGS.items():
        wrapper, optim = _trained(arguments)
        full = wrapper.full_state_dict()
        full_optim = wrapper.optimizer_state_dict(optim.optimizer)
        assert bool(full) == bool(full_optim) == (rank == 0), "on the first rank only"
        if rank == 0:
            assert list(full) == list(Net().state_dict())
            _expect_snapshot(wrapper, full)

        other, other_optim = _trained(CONFIGS["full"], steps=0)
        other.load_full_state_dict(full)
        other.load_optimizer_state_dict(other_optim.optimizer, full_optim)
        _expect_same(wrapper, other)
        for one, its_optim in ((wrapper, optim), (other, other_optim)):
            one.train_step({"inputs": INPUTS}, its_optim)
        _expect_same(wrapper, other)

        state = {
            "model": wrapper.sharded_state_dict(),
            "optimizer": wrapper.optimizer_state_dict(optim.optimizer, kind="sharded"),
        }
        dcp.save(state, checkpoint_id=folder / name)
        if rank == 0:
            torch.save([full, full_optim], folder / f"{name}.pth")
    _expect_partial_optimizers(rank)
    _expect_errors(rank)
    _expect_names(wrapper)


def _expect_snapshot(wrapper, state):
    """A whole state is a copy: training goes on without changing it."""
    scale = wrapper.module.scale
    scale.add_(1)
    assert state["scale"] == scale - 1
    scale.sub_(1)


def _momentum_for_blocks(arguments):
    wrapper = MMFullyShardedDataParallel(Net(), **arguments)
    stem, blocks = wrapper.module.stem.parameters(), wrapper.module.blocks.parameters()
    groups = [{"params": [*stem], "lr": 0.5}, {"params": [*blocks], "momentum": 0.9}]
    return wrapper, torch.optim.SGD(groups, lr=0.01)


def _expect_partial_optimizers(rank):
    """Not every parameter has optimizer state, and there may be gradients already."""
    wrapper, optim = _momentum_for_blocks(CONFIGS["full"])
    wrapper(INPUTS + rank)["loss"].backward()
    optim.step()
    full = wrapper.full_state_dict()
    full_optim = wrapper.optimizer_state_dict(optim)
    assert not any(name.startswith("stem") for name in full_optim.get("state", ()))
    other, other_optim = _momentum_for_blocks(CONFIGS["full"])
    other.load_full_state_dict(full)
    # The same gradients, before the state is loaded.
    for one in (wrapper, other):
        one.zero_grad()
        one(INPUTS - rank)["loss"].backward()
    other_optim.param_groups[0]["lr"] = 7
    other.load_optimizer_state_dict(other_optim, full_optim)
    assert [group["lr"] for group in other_optim.param_groups] == [0.5, 0.01]
    assert len(other_optim.state) == len(optim.state) == 12
    for one in (optim, other_optim):
        one.step()
    _expect_same(wrapper, other)

    # Looking at an optimizer that has not stepped changes nothing.
    wrapper, optim = _trained(CONFIGS["full"], steps=0)
    wrapper(INPUTS)["loss"].backward()
    assert wrapper.optimizer_state_dict(optim.optimizer).get("state", {}) == {}
    assert not optim.optimizer.state


def _expect_errors(rank):
    wrapper = MMFullyShardedDataParallel(Net())
    state = dict(Net().state_dict())
    state["head.weight"] = torch.ones(1, 5)
    state["tail"] = state.pop("stem.bias")
    # Ranks other than the first have nothing to give, and fail all the same.
    with pytest.raises(ConfigError) as raised:
        wrapper.load_full_state_dict(state if rank == 0 else {})
    assert "missing: stem.bias; unexpected: tail; head.weight: the model has (3, 5), the" in str(
        raised.value
    )
    del state["head.weight"]
    state["stem.weight"] = state["stem.weight"] + 1
    before = Net().head.weight
    wrapper.load_full_state_dict(state if rank == 0 else {}, strict=False)
    assert torch.equal(whole(wrapper.module.stem.weight), Net().stem.weight + 1)
    assert torch.equal(whole(wrapper.module.head.weight), before)
    with pytest.raises(ConfigError, match="kind='whole' is not known; use 'full' or 'sharded'"):
        wrapper.optimizer_state_dict(Optim(wrapper).optimizer, kind="whole")


def _expect_names(wrapper):
    """A wrapper inside a model does not show in names either, and loads what it gave."""
    outer = nn.ModuleDict({"module": wrapper, "other": nn.Linear(2, 2)})
    state = outer.state_dict()
    assert [name for name in state if name.startswith("module")] == [
        f"module.{name}" for name in Net().state_dict()
    ]
    state["module.scale"] = torch.tensor([7.0])
    outer.load_state_dict(state)
    assert wrapper.module.scale == 7
    state["module.tail"] = state["module.scale"]
    assert outer.load_state_dict(state, strict=False).unexpected_keys == ["module.module.tail"]


@pytest.mark.usefixtures("group_of_one")
def test_states_move_between_ranks_and_to_one_process(run_ranks, tmp_path):
    run_ranks(_expect_round_trips, 2, tmp_path)
    reference = Net()
    optim = Optim(reference)
    for _ in range(3):
        before = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
        reference(INPUTS)["loss"].backward()
        optim.optimizer.step()
        optim.optimizer.zero_grad()
    for name in CONFIGS:
        _expect_whole_state_fits(tmp_path / f"{name}.pth", before, reference)
        _expect_sharded_state_fits(tmp_path / name, reference)


def _expect_whole_state_fits(path, before, reference):
    """The file of two ranks fits the bare model, and its optimizer goes on from there."""
    full, full_optim = torch.load(path, weights_only=True)
    model = Net()
    model.load_state_dict(full)
    for name, expected in before.items():
        torch.testing.assert_close(full[name], expected)
    optim = Optim(model)
    dcp_state.set_optimizer_state_dict(model, optim.optimizer, full_optim)
    model(INPUTS)["loss"].backward()
    optim.optimizer.step()
    _expect_close(model, reference)


def _expect_sharded_state_fits(folder, reference):
    """The folder of two ranks fits one rank, and the bare model, here after the third step."""
    model = Net()
    nn.init.zeros_(model.stem.weight)
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    _expect_close(model, reference)

    wrapper, optim = _trained({"auto_wrap_policy": "blocks.*"}, steps=0)
    state = {
        "model": wrapper.sharded_state_dict(),
        "optimizer": dcp_state.get_optimizer_state_dict(wrapper.module, optim.optimizer),
    }
    dcp.load(state, checkpoint_id=folder)
    wrapper.load_sharded_state_dict(state["model"])
    wrapper.load_optimizer_state_dict(optim.optimizer, state["optimizer"], kind="sharded")
    _expect_close(wrapper, reference)
    moments = wrapper.optimizer_state_dict(optim.optimizer)["state"]["stem.weight"]
    assert moments["step"] == 3
    assert moments["exp_avg"].abs().sum() > 0


def _expect_close(model, reference):
    pairs = zip(model.named_parameters(), reference.parameters(), strict=True)
    for (name, one), other in pairs:
        torch.testing.assert_close(whole(one), other, msg=lambda m, n=name: f"{n}: {m}")
