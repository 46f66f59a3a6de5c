"""What the arguments of MMFullyShardedDataParallel may say, and the errors where they may not."""

from types import SimpleNamespace

import pytest
import torch
from fsdp_models import Net, Optim, group_names, init_mesh, needs_fully_shard
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mm_dist import ArgumentTypeError, ConfigError, MMFullyShardedDataParallel
from mm_dist._wrappers._sharding_arguments import read_strategy

fsdp = pytest.importorskip("torch.distributed.fsdp")


@pytest.mark.parametrize(
    ("given", "name", "is_freed"),
    [
        ("full", "full", True),
        ("FULL_SHARD", "full", True),
        ("ShardingStrategy.SHARD_GRAD_OP", "grad-op", False),
        (SimpleNamespace(name="HYBRID_SHARD"), "hybrid", True),
        ("_HYBRID_SHARD_ZERO2", "hybrid-grad-op", False),
        ("grad_op", "grad-op", False),
        ("NO_SHARD", "no-shard", False),
    ],
)
def test_strategies_have_torchs_names_too(given, name, is_freed):
    strategy = read_strategy(given)
    assert (strategy.name, strategy.is_freed) == (name, is_freed)


def test_members_of_torchs_enum_are_strategies():
    names = {member: read_strategy(member).name for member in fsdp.ShardingStrategy}
    assert names[fsdp.ShardingStrategy.FULL_SHARD] == "full"
    assert len(set(names.values())) == len(names)


def test_unknown_strategies_are_refused():
    with pytest.raises(ConfigError, match=r"sharding_strategy='fulll' is .* Did you mean 'full'"):
        read_strategy("fulll")
    with pytest.raises(ConfigError, match="sharding_strategy=7 is not known"):
        read_strategy(7)


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_ranks_are_taken_from_a_mesh():
    named = init_mesh(1, 1, names=("a", "b"))
    wrapper = MMFullyShardedDataParallel(Net(), device_mesh=named)
    assert wrapper.device_mesh is named
    assert wrapper.sharding_strategy == "hybrid"
    assert MMFullyShardedDataParallel(Net(), device_mesh=init_mesh(1)).sharding_strategy == "full"
    assert MMFullyShardedDataParallel(Net(), device_mesh=1).device_mesh.ndim == 1
    wrapper = MMFullyShardedDataParallel(Net(), sharding_strategy="hybrid", device_mesh=[1, 1])
    assert wrapper.device_mesh.mesh_dim_names == ("replicate", "shard")


@needs_fully_shard
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device_mesh": (2, 3)}, r"device_mesh=\(2, 3\) does not fit 1 ranks"),
        ({"device_mesh": ("a",)}, r"device_mesh=\('a',\) does not fit"),
        ({"device_mesh": lambda: init_mesh(1, 1)}, "has 2 dimensions named None.*two with names"),
        ({"device_mesh": (1,), "sharding_strategy": "hybrid"}, "'hybrid' needs two with names"),
        ({"device_mesh": (1, 1), "sharding_strategy": "full"}, r"'full' needs one \(shards\)"),
        ({"process_group": ("g", "h")}, "process_group is one group, goes without"),
        ({"mixed_precision": "bf16"}, "mixed_precision='bf16' cannot be used"),
        ({"mixed_precision": {"param_type": 1}}, "'param_type'.* Did you mean 'param_dtype'"),
        ({"mixed_precision": {"param_dtype": "int8"}}, "param_dtype='int8' is no floating-point"),
        ({"cpu_offload": "yes"}, "cpu_offload='yes' cannot be used"),
        ({"ignored_modules": ["tail"]}, "ignored_modules: 'tail' matches none of the model's"),
        ({"ignored_modules": [3]}, "ignored_modules: 3 matches none"),
        ({"ignored_modules": ["stem"]}, r"stem\.weight, stem\.bias: parameters of ignored_modules"),
    ],
)
@pytest.mark.usefixtures("group_of_one")
def test_argument_errors_say_what_to_do(arguments, message):
    made = {k: v() if callable(v) else v for k, v in arguments.items()}
    with pytest.raises(ConfigError, match=message):
        MMFullyShardedDataParallel(Net(), **made)


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_policies_of_torch_and_unused_arguments_are_taken():
    wrapper = MMFullyShardedDataParallel(
        nn.Linear(4, 2),
        backward_prefetch="BACKWARD_POST",
        use_orig_params=False,
        mixed_precision={"param_dtype": torch.bfloat16},
    )
    assert wrapper(torch.ones(1, 4)).dtype == torch.bfloat16
    wrapper = MMFullyShardedDataParallel(
        nn.Linear(4, 2),
        cpu_offload=fsdp.OffloadPolicy(),
        mixed_precision=fsdp.MixedPrecisionPolicy(torch.float64),
    )
    assert wrapper(torch.ones(1, 4)).dtype == torch.float64


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_ignored_parameters_stay_whole():
    model = Net()
    for part in (model.stem, model.blocks[0]):
        part.requires_grad_(requires_grad=False)
    MMFullyShardedDataParallel(model, ignored_modules=["blocks.0", model.stem])
    whole = [n for n, p in model.named_parameters() if not hasattr(p, "placements")]
    parts = ("stem.weight", "stem.bias", "blocks.0.up.weight", "blocks.0.up.bias")
    assert whole == [*parts, "blocks.0.down.weight", "blocks.0.down.bias"]


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_optimizer_from_before_is_told_by_the_sharded_parameters():
    model, batch = Net(), {"inputs": torch.ones(1, 4)}
    stale = Optim(model)
    wrapper = MMFullyShardedDataParallel(model)
    with pytest.raises(ConfigError, match="holds parameters from before the model was sharded"):
        wrapper.train_step(batch, stale)


class Preprocessing(nn.Module):
    def __init__(self):
        super().__init__()
        self.data_preprocessor = nn.Sequential(nn.Linear(4, 4))
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 4)


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_parameters_of_the_preprocessor_stay_whole():
    model = Preprocessing()
    with pytest.raises(ConfigError, match=r"^data_preprocessor\.0\.weight, .* Freeze them"):
        MMFullyShardedDataParallel(model)
    model.data_preprocessor.requires_grad_(False)  # noqa: FBT003
    MMFullyShardedDataParallel(model, auto_wrap_policy="*")
    assert group_names(model) == ["", "body", "body.0", "head"]
    assert not hasattr(model.data_preprocessor[0].weight, "placements")
    # It works where the model's own parameters are not gathered.
    assert model.data_preprocessor(torch.ones(1, 4)).shape == (1, 4)


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_modules_that_cannot_be_sharded_are_refused():
    with pytest.raises(ArgumentTypeError, match=r"must be a torch\.nn\.Module"):
        MMFullyShardedDataParallel({"a": 1})
    for wrap in (DistributedDataParallel, MMFullyShardedDataParallel):
        with pytest.raises(ConfigError, match="is wrapped or sharded already"):
            MMFullyShardedDataParallel(nn.Sequential(wrap(nn.Linear(2, 2))))
