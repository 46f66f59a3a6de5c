"""What the arguments of MMFullyShardedDataParallel may say, and the errors where they may not."""

import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fsdp_models import TORCH, Block, Net, needs_fully_shard
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mm_dist import (
    ArgumentTypeError,
    ConfigError,
    LaunchError,
    MMFullyShardedDataParallel,
    TorchVersionError,
    is_model_wrapper,
)
from mm_dist._wrappers._sharding_mesh import choose_device_type, mesh_device
from mm_dist._wrappers._sharding_strategy import read_strategy

fsdp = pytest.importorskip("torch.distributed.fsdp")
wrap = pytest.importorskip("torch.distributed.fsdp.wrap")


def _groups(model):
    return [name for name, part in model.named_modules() if hasattr(part, "unshard")]


BLOCKS = ["", "blocks.0", "blocks.1", "blocks.2"]
LINEAR = [f"blocks.{i}.{part}" for i in range(3) for part in ("up", "down")]


def _is_of_first_kind(module, recurse, nonwrapped_numel):
    """Take what has 100 parameters, as torch's first policies were asked."""
    return recurse or (nonwrapped_numel >= 100 and isinstance(module, Block))


@needs_fully_shard
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, [""]),
        ("Block", BLOCKS),
        (["Block", nn.Linear], sorted([*BLOCKS, *LINEAR, "stem", "head"])),
        ({Block}, BLOCKS),
        ("fsdp_models.Block", BLOCKS),
        ("blocks.[01]", BLOCKS[:3]),
        (("blocks.*.up", "head"), ["", "blocks.0.up", "blocks.1.up", "blocks.2.up", "head"]),
        ({"min_num_params": 100}, BLOCKS),
        ({"type": "size_based_auto_wrap_policy", "min_num_params": 1e9}, [""]),
        ({"type": "transformer", "transformer_layer_cls": ["Block"]}, BLOCKS),
        ({"type": "transformer_auto_wrap_policy", "transformer_layer_cls": {Block}}, BLOCKS),
        (
            {
                "type": "module_wrap_policy",
                "module_classes": Block,
            },
            BLOCKS,
        ),
        ({"type": "lambda_auto_wrap_policy", "lambda_fn": lambda m: isinstance(m, Block)}, BLOCKS),
        ({"type": "always_wrap_policy"}, sorted([*BLOCKS, *LINEAR, "stem", "head"])),
        ({"type": _is_of_first_kind}, BLOCKS),
        (lambda module: isinstance(module, nn.ModuleList | Block), BLOCKS),
        (_is_of_first_kind, BLOCKS),
        (partial(_is_of_first_kind), BLOCKS),
    ],
)
@pytest.mark.usefixtures("group_of_one")
def test_policy_makes_groups_of(policy, expected):
    model = Net()
    MMFullyShardedDataParallel(model, auto_wrap_policy=policy)
    assert sorted(_groups(model)) == expected


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_policies_of_torch_make_the_groups_that_torch_makes():
    for policy in (
        wrap.ModuleWrapPolicy({Block}),
        partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        partial(wrap.size_based_auto_wrap_policy, min_num_params=100),
        {"type": wrap.ModuleWrapPolicy, "module_classes": {Block}},
    ):
        model = Net()
        MMFullyShardedDataParallel(model, auto_wrap_policy=policy)
        assert _groups(model) == BLOCKS


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_what_is_not_called_heads_no_group():
    # Attention reads the weights of its output layer without calling it.
    model = nn.TransformerEncoderLayer(4, 2, 8)
    MMFullyShardedDataParallel(model, auto_wrap_policy=lambda module: True)  # noqa: ARG005
    assert _groups(model) == ["", "self_attn", "linear1", "linear2", "norm1", "norm2"]


@needs_fully_shard
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("Blok", r"'Blok' matches no module; classes found: Block, Linear, ModuleList\. Did you"),
        (nn.Conv2d, "'torch.nn.modules.conv.Conv2d'> matches no module"),
        (["Block", "bloks.*"], r"'bloks\.\*' matches no module"),
        ("blocks", r"names 'blocks', a ModuleList, which has no forward.*'blocks\.\*'"),
        (["Block", 3], "holds 3; give classes"),
        ([], "holds 'nothing'"),
        (3.5, r"auto_wrap_policy=3\.5 cannot be used"),
        ({"min_num_params": 0}, "takes min_num_params, a positive number; got"),
        ({"min_num_params": 1, "leaves": 2}, "takes min_num_params"),
        ({"type": "transfomer"}, "has type 'transfomer'.* Did you mean 'transformer'"),
        ({"type": "transformer", "classes": []}, "takes transformer_layer_cls, got classes"),
        ({"classes": []}, "has type None"),
    ],
)
@pytest.mark.usefixtures("group_of_one")
def test_policy_errors_say_what_there_is(policy, message):
    with pytest.raises(ConfigError, match=message):
        MMFullyShardedDataParallel(Net(), auto_wrap_policy=policy)


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
    strategy = read_strategy(given, None)
    assert (strategy.name, strategy.reshard_after_forward) == (name, is_freed)


def test_members_of_torchs_enum_are_strategies():
    names = {member: read_strategy(member, None).name for member in fsdp.ShardingStrategy}
    assert names[fsdp.ShardingStrategy.FULL_SHARD] == "full"
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize(
    ("strategy", "reshard", "message"),
    [
        ("fulll", None, "sharding_strategy='fulll' is not known.* Did you mean 'full'"),
        (7, None, "sharding_strategy=7 is not known"),
        ("full", False, "'full' and reshard_after_forward=False contradict each other"),
        ("grad-op", 2, "'grad-op' and reshard_after_forward=2 contradict"),
        (None, "yes", "reshard_after_forward='yes' cannot be used"),
        (None, 1, r"reshard_after_forward=1 cannot be used.*2 or more"),
    ],
)
def test_strategy_errors(strategy, reshard, message):
    with pytest.raises(ConfigError, match=message):
        read_strategy(strategy, reshard)


def _mesh(*shape, names=None):
    make = torch.distributed.device_mesh.init_device_mesh
    return make("cpu", shape, mesh_dim_names=names)


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_ranks_are_taken_from_a_mesh():
    named = _mesh(1, 1, names=("a", "b"))
    wrapper = MMFullyShardedDataParallel(Net(), device_mesh=named)
    assert wrapper.device_mesh is named
    assert wrapper.sharding_strategy == "hybrid"
    assert MMFullyShardedDataParallel(Net(), device_mesh=_mesh(1)).sharding_strategy == "full"
    assert MMFullyShardedDataParallel(Net(), device_mesh=1).device_mesh.ndim == 1
    wrapper = MMFullyShardedDataParallel(Net(), sharding_strategy="hybrid", device_mesh=[1, 1])
    assert wrapper.device_mesh.mesh_dim_names == ("replicate", "shard")


@needs_fully_shard
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device_mesh": (2, 3)}, r"device_mesh=\(2, 3\) does not fit 1 ranks"),
        ({"device_mesh": ("a",)}, r"device_mesh=\('a',\) does not fit"),
        ({"device_mesh": lambda: _mesh(1, 1)}, "has 2 dimensions named None"),
        ({"device_mesh": (1,), "sharding_strategy": "hybrid"}, "needs a device_mesh of 2"),
        ({"device_mesh": (1, 1), "sharding_strategy": "full"}, "needs a device_mesh of 1"),
        ({"device_mesh": (1,), "process_group": "g"}, "both say which ranks"),
        ({"process_group": ("g", "h")}, r"process_group=\('g', 'h'\) is no process group"),
        ({"process_group": "g", "sharding_strategy": "hybrid"}, "does not say how the ranks"),
        ({"mixed_precision": "bf16"}, "mixed_precision='bf16' cannot be used"),
        ({"mixed_precision": {"param_type": 1}}, "'param_type'.* Did you mean 'param_dtype'"),
        ({"mixed_precision": {"param_dtype": "int8"}}, "param_dtype='int8' is no floating-point"),
        ({"mixed_precision": {"param_dtype": "bfloat61"}}, "Did you mean 'bfloat16'"),
        (
            {"mixed_precision": {"param_dtype": "bfloat16", "full_precision_modules": "Conv9d"}},
            "mixed_precision full_precision_modules: 'Conv9d' matches no module",
        ),
        (
            {"mixed_precision": {"param_dtype": "bfloat16", "full_precision_modules": [3]}},
            "full_precision_modules holds 3",
        ),
        ({"cpu_offload": "yes"}, "cpu_offload='yes' cannot be used"),
        ({"cpu_offload": {"pin": True}}, "cannot be used; give True, False or dict"),
        ({"ignored_modules": ["tail"]}, "ignored_modules: 'tail' matches none of the model's"),
        ({"ignored_parameters": [3]}, "ignored_parameters holds 3"),
        ({"device_id": "cuda:1"}, "device_id='cuda:1' was given, and the current device .* is cpu"),
    ],
)
@pytest.mark.usefixtures("group_of_one")
def test_argument_errors_say_what_to_do(arguments, message):
    made = {k: v() if callable(v) else v for k, v in arguments.items()}
    with pytest.raises(ConfigError, match=message):
        MMFullyShardedDataParallel(Net(), **made)


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_former_arguments_without_meaning_are_named_once():
    with pytest.warns(UserWarning, match="goes on without") as record:
        MMFullyShardedDataParallel(
            Net(),
            backward_prefetch="BACKWARD_POST",
            use_orig_params=False,
            forward_prefetch=True,
            limit_all_gathers=False,
        )
    (message,) = [str(one.message) for one in record]
    for name in ("backward_prefetch", "use_orig_params", "forward_prefetch", "limit_all_gathers"):
        assert f"{name}" in message
    with pytest.warns(UserWarning, match="buffer_dtype: buffers keep their dtype.*keep_low"):
        MMFullyShardedDataParallel(
            Net(),
            mixed_precision={"buffer_dtype": torch.float16, "keep_low_precision_grads": True},
        )


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_former_arguments_with_meaning_are_taken_silently():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapper = MMFullyShardedDataParallel(
            nn.Linear(4, 2),
            backward_prefetch=fsdp.BackwardPrefetch.BACKWARD_PRE,
            cpu_offload=fsdp.CPUOffload(offload_params=True),
            mixed_precision=fsdp.MixedPrecision(param_dtype=torch.bfloat16),
            device_id=torch.device("cpu"),
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
    with pytest.warns(UserWarning, match=r"nothing averages their gradients: stem\.weight, "):
        MMFullyShardedDataParallel(
            model, ignored_modules=["blocks.0"], ignored_states=[model.head.bias, model.stem]
        )
    whole = [n for n, p in model.named_parameters() if not hasattr(p, "placements")]
    parts = ("stem.weight", "stem.bias", "blocks.0.up.weight", "blocks.0.up.bias")
    assert whole == [*parts, "blocks.0.down.weight", "blocks.0.down.bias", "head.bias"]


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
    with pytest.raises(
        ConfigError, match="data_preprocessor of Preprocessing has parameters to train"
    ):
        MMFullyShardedDataParallel(model)
    model.data_preprocessor.requires_grad_(False)  # noqa: FBT003
    MMFullyShardedDataParallel(model, auto_wrap_policy="*")
    assert _groups(model) == ["", "body", "body.0", "head"]
    assert not hasattr(model.data_preprocessor[0].weight, "placements")
    # It works where the model's own parameters are not gathered.
    assert model.data_preprocessor(torch.ones(1, 4)).shape == (1, 4)


@needs_fully_shard
@pytest.mark.usefixtures("group_of_one")
def test_modules_that_cannot_be_sharded_are_refused():
    with pytest.raises(ArgumentTypeError, match=r"must be a torch\.nn\.Module"):
        MMFullyShardedDataParallel({"a": 1})
    with pytest.raises(ConfigError, match="ReLU has no parameters"):
        MMFullyShardedDataParallel(nn.ReLU())
    for wrap in (DistributedDataParallel, MMFullyShardedDataParallel):
        with pytest.raises(ConfigError, match="is wrapped or sharded already"):
            MMFullyShardedDataParallel(nn.Sequential(wrap(nn.Linear(2, 2))))
    with pytest.raises(ConfigError, match=r"'0\.weight' has no shape yet"):
        MMFullyShardedDataParallel(nn.Sequential(nn.LazyLinear(2)))
    model = Net()
    model.temperature = nn.Parameter(torch.ones(()))
    with pytest.raises(ConfigError, match=r"sharded: temperature\. Give them the shape \(1,\)"):
        MMFullyShardedDataParallel(model)
    MMFullyShardedDataParallel(Net(), ignored_parameters=["head.bias"])


@pytest.mark.skipif(TORCH < (2, 6), reason="older torch is refused before")
def test_wrapper_needs_a_process_group():
    with pytest.raises(LaunchError, match=r"call mm_dist\.init_dist first"):
        MMFullyShardedDataParallel(nn.Linear(2, 1))


@pytest.mark.skipif(TORCH >= (2, 6), reason="this torch has fully_shard")
def test_old_torch_is_refused_at_construction():
    message = rf"fully_shard, which torch has since 2\.6; this is {torch.__version__[:3]}"
    with pytest.raises(TorchVersionError, match=message):
        MMFullyShardedDataParallel(nn.Linear(2, 1))
    assert not is_model_wrapper(nn.Linear(2, 1))


@pytest.mark.skipif(TORCH != (2, 6), reason="only torch 2.6 shards on accelerators alone")
@pytest.mark.usefixtures("group_of_one")
def test_torch_2_6_is_refused_on_the_cpu():
    with pytest.raises(TorchVersionError, match=r"on the CPU needs torch 2\.7 or newer"):
        MMFullyShardedDataParallel(nn.Linear(2, 1))
    frozen = nn.Linear(2, 1).requires_grad_(False)  # noqa: FBT003
    with pytest.raises(TorchVersionError, match=r"not sharded .* need torch 2\.7 or newer"):
        MMFullyShardedDataParallel(frozen, ignored_parameters=["bias"])


@pytest.mark.usefixtures("group_of_one")
def test_module_goes_to_the_device_of_the_process(monkeypatch):
    # Stand-ins for parameters and for a device: there is none here.
    def on(*types):
        parameters = [SimpleNamespace(device=SimpleNamespace(type=kind)) for kind in types]
        return SimpleNamespace(parameters=lambda: parameters)

    assert choose_device_type(on("cpu", "meta"), None) == "cpu"
    assert choose_device_type(on("npu", "cpu"), None) == "npu"
    assert choose_device_type(on("cpu"), SimpleNamespace(device_type="cuda")) == "cuda"
    with pytest.raises(ConfigError, match="has parameters on cuda, npu; move it to one device"):
        choose_device_type(on("npu", "cuda"), None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert mesh_device(SimpleNamespace(device_type="cuda")) == torch.device("cuda", 3)
    assert mesh_device(SimpleNamespace(device_type="cpu")) == torch.device("cpu")
