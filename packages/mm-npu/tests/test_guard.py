"""Checks around torch_npu's own optimizers, with a stand-in that packs as they do.

The same checks around torch_npu's real code are in the integration tests.
"""

import copy
import gc
import warnings
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mm_npu import (
    ConfigError,
    FusedOptimizerError,
    NpuFusedAdam,
    NpuFusedSGD,
    UntrainedParameterWarning,
)

PACK = "_maybe_init_combined_params_and_grads"
needs_step_hooks = pytest.mark.skipif(
    not hasattr(torch.optim.Optimizer, "register_step_pre_hook"),
    reason="torch 1.13 has no step hooks",
)
TAKES_NAMES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)


@pytest.fixture(autouse=True)
def _npu(put_torch_npu):
    put_torch_npu()


def make_params(dtype=torch.float32):
    return [nn.Parameter(torch.ones(size, dtype=dtype)) for size in (2, 3)]


def give_gradients(params):
    for p in params:
        if p.grad is None:
            p.grad = torch.ones_like(p)
        else:
            p.grad.add_(1)


def test_nothing_is_in_the_way_after_the_first_step():
    params = make_params()
    optimizer = NpuFusedAdam(params, lr=0.1)
    optimizer.zero_grad()  # before the first backward: packs nothing
    for _ in range(3):
        give_gradients(params)
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.num_packs == 2
    assert not {"step", "zero_grad", "clip_grad_norm_fused_", PACK} & set(vars(optimizer))
    sum(p.sum() for p in params).backward()
    assert not any(p._backward_hooks for p in params)
    optimizer.zero_grad()
    # momentum of one half: 1, 1.5, 1.75
    torch.testing.assert_close(params[0].detach(), torch.full((2,), 1 - 0.1 * 4.25))


def test_an_optimizer_is_freed_at_once():
    optimizer = NpuFusedAdam(make_params())
    reference = weakref.ref(optimizer)
    gc.disable()
    try:
        del optimizer
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("clears_first", [False, True], ids=["step", "zero_grad"])
def test_parameters_without_a_gradient_are_named_when_the_others_are_packed(clears_first):
    params = [*make_params(), nn.Parameter(torch.ones(4, 5)), nn.Parameter(torch.ones(6))]
    params[1].requires_grad = False
    optimizer = NpuFusedAdam([{"params": params[:1]}, {"params": params[1:]}])
    give_gradients(params[:1])
    with pytest.warns(UntrainedParameterWarning) as caught:
        optimizer.zero_grad() if clears_first else optimizer.step()
    (warning,) = caught
    message = str(warning.message)
    assert "NpuFusedAdam packs its parameters now, and 2 that require gradients have" in message
    assert "param_groups[1][1] of shape (4, 5), param_groups[1][2] of shape (6,); " in message
    assert "requires_grad=False" in message
    assert "p.grad = torch.zeros_like(p)" in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()


@pytest.mark.skipif(not TAKES_NAMES, reason="optimizers take names from torch 2.6 on")
def test_parameters_are_called_by_the_names_that_the_optimizer_was_given():
    optimizer = NpuFusedAdam([("head.weight", nn.Parameter(torch.ones(1))), *_named(12)])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    with pytest.warns(
        UntrainedParameterWarning, match=r"none: p0 of .* p9 of shape \(1,\) and 2 m"
    ):
        optimizer.step()


def _named(num):
    return [(f"p{index}", nn.Parameter(torch.ones(1))) for index in range(num)]


@needs_step_hooks
@pytest.mark.filterwarnings("ignore::mm_npu.UntrainedParameterWarning")
def test_a_first_gradient_after_the_packing_is_refused_at_the_next_step():
    used, late = make_params()
    optimizer = NpuFusedSGD([used, late], lr=0.1)
    used.sum().backward()
    optimizer.step()
    used.sum().backward()
    optimizer.step()  # still none for the other
    late.sum().backward()
    with pytest.raises(
        FusedOptimizerError, match=r"cannot step: param_groups\[0\]\[1\] of shape \(3,\) has got"
    ):
        optimizer.step()
    # It is the business of that optimizer only, and of nobody when that is gone.
    del optimizer
    fresh = NpuFusedSGD([used, late], lr=0.1)
    (used.sum() + late.sum()).backward()
    fresh.step()


@needs_step_hooks
@pytest.mark.filterwarnings("ignore::mm_npu.UntrainedParameterWarning")
def test_a_gradient_that_is_only_asked_for_is_none_that_came_late():
    used, late = make_params()
    optimizer = NpuFusedSGD([used, late], lr=0.1)
    used.sum().backward()
    optimizer.step()
    for _ in range(2):  # as penalties on gradients do, in each step
        torch.autograd.grad(late.sum(), late)
        used.sum().backward()
        optimizer.step()
    late.sum().backward()
    with pytest.raises(FusedOptimizerError, match="has got its first gradient after the first"):
        optimizer.step()


def train_once(optimizer, params):
    sum(p.sum() for p in params).backward()
    optimizer.step()


def clear(params):
    for p in params:
        p.grad = None


@needs_step_hooks
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("has_scheduler", [False, True])
def test_gradients_that_were_replaced_are_refused_at_the_second_step(has_scheduler):
    params = make_params()
    optimizer = NpuFusedAdam(params, lr=0.1)
    if has_scheduler:
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train_once(optimizer, params)
    clear(params)  # as model.zero_grad() does
    for _ in range(2):
        with pytest.raises(
            FusedOptimizerError, match=r"not the tensor .* such as model\.zero_grad"
        ):
            train_once(optimizer, params)


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("has_scheduler", [False, True])
def test_gradients_that_were_set_aside_and_put_back_are_accepted(has_scheduler):
    params = make_params()
    optimizer = NpuFusedAdam(params, lr=0.1)
    if has_scheduler:
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train_once(optimizer, params)
    optimizer.zero_grad()
    aside = [p.grad for p in params]
    clear(params)
    sum(p.sum() for p in params).backward()
    for p, gradient in zip(params, aside, strict=True):
        p.grad = gradient.add_(p.grad)
    optimizer.step()
    torch.testing.assert_close(params[0].detach(), torch.full((2,), 1 - 0.1 * 2.5))
    train_once(optimizer, params)


def test_the_remedy_of_the_warning_works():
    used, late = make_params()
    optimizer = NpuFusedSGD([used, late], lr=0.1)
    used.sum().backward()
    late.grad = torch.zeros_like(late)
    optimizer.step()
    late.sum().backward()
    optimizer.step()
    torch.testing.assert_close(late.detach(), torch.full((3,), 0.9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_parameter_of_another_dtype_is_refused_at_construction(dtype):
    params = [*make_params(), nn.Parameter(torch.ones(4, dtype=dtype))]
    with pytest.raises(
        ConfigError,
        match=rf"given param_groups\[0\]\[2\] of shape \(4,\) and {dtype}; .* under autocast",
    ):
        NpuFusedAdam(params)
    params[2].requires_grad = False
    NpuFusedAdam(params)
    NpuFusedAdam(make_params(torch.float16))


@pytest.fixture
def group(tmp_path):
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore:DTensor random operators:UserWarning")
def test_a_sharded_parameter_is_refused_at_construction():
    tensor = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(tensor, "distribute_tensor"):
        pytest.skip("torch.distributed.tensor is public since torch 2.5")
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    p = nn.Parameter(tensor.distribute_tensor(torch.ones(4, 2), mesh, [tensor.Shard(0)]))
    with pytest.raises(
        ConfigError, match=r"of shape \(4, 2\), which is sharded .* Train with MMDi"
    ):
        NpuFusedAdam([p])


def test_a_parameter_that_the_first_fsdp_manages_is_refused_at_construction():
    p = nn.Parameter(torch.ones(4))
    p._fsdp_flattened = True  # its own mark; real ones are in test_sharded
    with pytest.raises(ConfigError, match=r"of shape \(4,\), which is sharded over ranks"):
        NpuFusedAdam([p])


@pytest.mark.usefixtures("group")
def test_bucket_views_are_refused_at_the_first_step():
    for num_layers in (1, 3):
        layers = [nn.Linear(3, 3) for _ in range(num_layers)]
        model = nn.parallel.DistributedDataParallel(
            nn.Sequential(*layers), gradient_as_bucket_view=True
        )
        optimizer = NpuFusedAdam(model.parameters())
        model(torch.ones(1, 3)).sum().backward()
        for _ in range(2):
            with pytest.raises(FusedOptimizerError, match=r"with gradient_as_bucket_view=False"):
                optimizer.step()


@pytest.mark.usefixtures("group")
def test_ddp_without_bucket_views_trains():
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
    optimizer = NpuFusedAdam(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.module.bias.detach())
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(model.module.bias.detach(), before - 0.1 * 2.5)


def test_gradients_that_are_pieces_of_one_memory_get_memories_of_their_own():
    params = make_params()
    torch.cat(params).pow(2).sum().backward()
    assert params[1].grad.storage_offset() == 2
    optimizer = NpuFusedAdam(params, lr=0.1)
    optimizer.step()
    sizes = [getattr(p.grad, "untyped_storage", p.grad.storage)().nbytes() for p in params]
    assert sizes == [8, 12]
    torch.testing.assert_close(params[1].detach(), torch.full((3,), 0.8))


def test_a_sparse_gradient_is_refused():
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = NpuFusedAdam(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match=r"gradient of layout torch\.sparse_coo"):
        optimizer.step()


def test_groups_are_added_until_the_first_step_only():
    params = make_params()
    optimizer = NpuFusedAdam(params[:1], lr=0.1)
    with pytest.raises(
        ConfigError, match=r"param_groups\[1\]\[0\] of shape \(1,\) and torch.bfloat"
    ):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1, dtype=torch.bfloat16))]})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": params[1:], "lr": 0.2})
    give_gradients(params)
    optimizer.step()
    with pytest.raises(FusedOptimizerError, match="after its first step; torch_npu has packed"):
        optimizer.add_param_group({"params": make_params()})
    assert len(optimizer.param_groups) == 2
    torch.testing.assert_close(params[1].detach(), torch.full((3,), 0.8))


@pytest.mark.parametrize("num_steps_before", [0, 2])
@pytest.mark.parametrize("count", [int, torch.tensor], ids=["ints", "tensors"])
def test_a_state_is_loaded_before_and_after_the_first_step(num_steps_before, count):
    def train(optimizer, params, num_steps):
        for _ in range(num_steps):
            give_gradients(params)
            optimizer.step()
            optimizer.zero_grad()

    params = make_params()
    optimizer = NpuFusedAdam(params, lr=0.1)
    train(optimizer, params, 3)
    state_dict = copy.deepcopy(optimizer.state_dict())
    assert [entry["step"] for entry in state_dict["state"].values()] == [3, 3]  # not torch_npu's 0
    for entry in state_dict["state"].values():
        entry["step"] = count(entry["step"])  # torch's own optimizers count in tensors
    resumed_params = make_params()
    resumed = NpuFusedAdam(resumed_params, lr=9.0)
    train(resumed, resumed_params, num_steps_before)
    resumed.load_state_dict(state_dict)
    for mine, theirs in zip(resumed_params, params, strict=True):
        mine.data.copy_(theirs.data)
    for _ in range(2):
        train(optimizer, params, 1)
        train(resumed, resumed_params, 1)
    torch.testing.assert_close(resumed_params, params, rtol=0, atol=0)
    steps = [entry["step"] for entry in resumed.state_dict()["state"].values()]
    assert steps == [5, 5]
    assert {type(step) for step in steps} == {int}


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")
def test_schedulers_and_hooks_get_along_with_the_checks():
    params = make_params()
    optimizer = NpuFusedAdam(params, lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(2):
        give_gradients(params)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
    torch.testing.assert_close(params[0].detach(), torch.full((2,), 1 - 1 - 0.5 * 1.5))


def test_the_original_refuses_set_to_none_and_clips_all_at_once():
    params = make_params()
    optimizer = NpuFusedAdam(params)
    give_gradients(params)
    with pytest.raises(ValueError, match="set_to_none is not supported"):
        optimizer.zero_grad(set_to_none=True)
    norm = optimizer.clip_grad_norm_fused_(1.0)
    torch.testing.assert_close(norm, torch.tensor(5.0).sqrt())
    assert PACK not in vars(optimizer)  # it packs, too
