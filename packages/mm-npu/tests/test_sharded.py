"""Parameters of which each rank has a part: here one rank that has all."""

import pytest
import torch
import torch.distributed as dist
from formulas import RULES
from test_portable import make, make_params, train

from mm_npu import ConfigError

pytestmark = [
    pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning"),
    # Of torch 2.6, about random numbers, which are not drawn here.
    pytest.mark.filterwarnings("ignore:DTensor random operators:UserWarning"),
]

WITH_NORMS = {"NpuFusedAdamP", "NpuFusedLamb"}
NO_COMMON_NORM = {"NpuFusedBertAdam": {"max_grad_norm": -1}}


@pytest.fixture
def shard(tmp_path):
    tensor = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(tensor, "distribute_tensor"):
        pytest.skip("torch.distributed.tensor is public since torch 2.5")
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))

    def distribute(value):
        return tensor.distribute_tensor(value.detach().clone(), mesh, [tensor.Shard(0)])

    yield distribute
    dist.destroy_process_group()


@pytest.mark.parametrize("name", sorted(set(RULES) - WITH_NORMS))
def test_rules_without_norms_train_sharded_parameters(name, shard):
    reference = make_params([(4, 3), (120, 100)])
    params = [torch.nn.Parameter(shard(p)) for p in reference]
    options = NO_COMMON_NORM.get(name, {})
    optimizer, twin = make(name, params, **options), make(name, reference, **options)
    for step in range(1, 4):
        train(twin, reference, [step])
        for p, whole in zip(params, reference, strict=True):
            p.grad = shard(whole.grad)
        optimizer.step()
    whole = [p.detach().full_tensor() for p in params]
    torch.testing.assert_close(whole, [p.detach() for p in reference])
    state = optimizer.state_dict()["state"][1]
    kinds = {type(value) for key, value in state.items() if key != "step"}
    assert kinds == {type(params[0].data)}  # so that distributed checkpoints shard them, too


# BertAdam clips by a norm, if it is not told otherwise.
@pytest.mark.parametrize("name", sorted(WITH_NORMS | set(NO_COMMON_NORM)))
def test_rules_with_norms_refuse_sharded_parameters(name, shard):
    params = [torch.nn.Parameter(shard(p)) for p in make_params([(4, 3)])]
    with pytest.raises(ConfigError, match=f"{name} was given parameters that are sharded"):
        make(name, params)


@pytest.fixture
def flatten():
    """Give a function that wraps a module in torch's first FSDP, as the first of two ranks."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    fsdp = pytest.importorskip("torch.distributed.fsdp").FullyShardedDataParallel
    dist.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())

    def wrap(module, **options):
        return fsdp(module, device_id=torch.device("cpu"), **options)

    yield wrap
    dist.destroy_process_group()


each_kind = pytest.mark.parametrize("keeps_params", [False, True], ids=["flat", "pieces"])


@each_kind
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of torch, about FSDP
def test_rules_with_norms_refuse_what_the_first_fsdp_has_flattened(flatten, keeps_params):
    model = flatten(torch.nn.Linear(4, 3), use_orig_params=keeps_params)
    for name in sorted(WITH_NORMS | set(NO_COMMON_NORM)):
        with pytest.raises(ConfigError, match=f"{name} was given parameters that are sharded"):
            make(name, model.parameters())
    for name in sorted(set(RULES) - WITH_NORMS):
        optimizer = make(name, model.parameters(), **NO_COMMON_NORM.get(name, {}))
        for _ in range(2):
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
        pairs = zip(model.parameters(), before, strict=True)
        assert all(p.numel() == 0 or not p.detach().equal(old) for p, old in pairs), name
