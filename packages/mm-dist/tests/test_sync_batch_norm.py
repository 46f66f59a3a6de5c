"""Batch normalization over all ranks: the conversion, its undoing, and the arithmetic on gloo."""

import copy
import random

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mm_dist import (
    ConfigError,
    MMDistributedDataParallel,
    convert_sync_batchnorm,
    revert_sync_batchnorm,
)

_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _random_norm(choose):
    norm = choose.choice(_KINDS)(
        choose.randint(1, 5),
        eps=choose.choice([1e-5, 1e-3]),
        momentum=choose.choice([0.1, 0.9, None]),
        affine=choose.choice([True, False]),
        track_running_stats=choose.choice([True, False]),
        dtype=choose.choice([torch.float32, torch.float64, torch.bfloat16]),
    )
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
        parameter.requires_grad_(choose.choice([True, False]))
    for buffer in norm.buffers():
        buffer.add_(choose.randint(1, 3))
    return norm.train(choose.choice([True, False]))


def _random_model(seed):
    choose = random.Random(seed)  # noqa: S311 (no secret)
    torch.manual_seed(seed)
    children = [choose.choice([_random_norm(choose), nn.Linear(2, 2)]) for _ in range(6)]
    children.append(children[choose.randint(0, 5)])  # shared
    nested = nn.ModuleDict({"inner": nn.Sequential(*children[:3]), "norm": _random_norm(choose)})
    return nn.Sequential(nested, *children)


def _describe(model):
    settings = ("eps", "momentum", "affine", "track_running_stats", "training", "num_features")
    modules = [
        (name, id(module), [getattr(module, setting, None) for setting in settings])
        for name, module in model.named_modules(remove_duplicate=False)
    ]
    tensors = [
        (name, id(tensor), tensor.dtype, tensor.device, tensor.requires_grad)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    ]
    return modules, tensors, list(model.state_dict())


@pytest.mark.parametrize("seed", range(10))
def test_round_trip_restores_every_module(seed):
    model = _random_model(seed)
    before = _describe(model)
    kinds = [type(module) for module in model.modules()]
    values = copy.deepcopy(model.state_dict())

    assert convert_sync_batchnorm(model) is model
    assert _describe(model) == before
    assert not any(type(module) in _KINDS for module in model.modules())
    num_converted = sum(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
    assert num_converted == sum(kind in _KINDS for kind in kinds)
    convert_sync_batchnorm(model)  # again changes nothing
    copy.deepcopy(model)

    assert revert_sync_batchnorm(model) is model
    assert _describe(model) == before
    assert [type(module) for module in model.modules()] == kinds
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert not any("process_group" in vars(module) for module in model.modules())


def test_hooks_stay():
    norm = nn.BatchNorm1d(2)
    calls = []
    norm.register_forward_hook(lambda *_: calls.append(type(norm)))
    convert_sync_batchnorm(norm)(torch.ones(2, 2))
    revert_sync_batchnorm(norm)(torch.ones(2, 2))
    assert [kind.__name__ for kind in calls] == ["SyncBatchNorm", "BatchNorm1d"]


def test_what_torch_converted_is_taken_over():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(3)))
    convert_sync_batchnorm(model)
    revert_sync_batchnorm(model)
    assert not isinstance(model[0], nn.SyncBatchNorm)
    assert model.eval()(torch.ones(2, 3, 4)).shape == (2, 3, 4)
    with pytest.raises(ValueError, match="at least 2 dimensions, got 1"):
        model(torch.ones(3))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")  # torch's own
def test_what_cannot_be_converted_warns():
    class Own(nn.BatchNorm1d):
        def forward(self, input):  # noqa: A002
            return super().forward(input) + 1

    class Plain(nn.BatchNorm1d):
        """A forward of torch's."""

    model = nn.ModuleDict({"own": Own(2), "plain": Plain(2), "lazy": nn.LazyBatchNorm1d()})
    with pytest.warns(UserWarning, match="still normalizes over its own rank") as records:
        convert_sync_batchnorm(model)
    messages = "\n".join(str(record.message) for record in records)
    assert "own (Own)" in messages
    assert "lazy (LazyBatchNorm1d)" in messages
    assert "plain" not in messages
    assert type(model["own"]) is Own
    assert isinstance(model["plain"], nn.SyncBatchNorm)
    assert type(revert_sync_batchnorm(model)["plain"]) is Plain


def test_other_implementations_are_refused():
    with pytest.raises(ConfigError, match="implementation='mmcv' is not supported; only 'torch'"):
        convert_sync_batchnorm(nn.BatchNorm1d(2), implementation="mmcv")


class Net(nn.Module):
    def __init__(self, dims, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.randn(3).view(1, 3, *[1] * (dims - 2)))
        self.first = _KINDS[max(dims - 3, 0)](3, **settings)
        self.second = _KINDS[max(dims - 3, 0)](3, **settings)

    def forward(self, inputs):
        # Between the norms: one right after it would cancel the scale, and leave noise of it.
        return self.second((self.first(inputs) * self.scale).tanh())


def _samples(dims, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(7, 3, *[4] * (dims - 2), generator=generator) * 2 + 50
    weights = torch.randn(7, 3, *[4] * (dims - 2), generator=generator)
    return inputs.to(dtype), weights.to(dtype)


def _expect_big_batch(rank):
    for dims, settings, num_of_first, dtype in (
        (2, {}, 3, torch.float64),
        (3, {"affine": False}, 6, torch.float64),
        (4, {"momentum": None}, 2, torch.float64),
        (4, {}, 7, torch.float64),  # the second rank has no sample
        (5, {"track_running_stats": False}, 5, torch.float64),
        (4, {}, 4, torch.float32),
    ):
        reference = Net(dims, **settings).to(dtype)
        model = convert_sync_batchnorm(copy.deepcopy(reference))
        wrapped = MMDistributedDataParallel(model, broadcast_buffers=False)
        own = slice(0, num_of_first) if rank == 0 else slice(num_of_first, 7)
        all_inputs, weights = _samples(dims, dtype)
        inputs = all_inputs[own].clone().requires_grad_()
        all_inputs.requires_grad_()
        for _ in range(2):
            found = wrapped(inputs)
            expected = reference(all_inputs)
            torch.testing.assert_close(found, expected[own])
            # The wrapper takes the mean over two ranks.
            (found * weights[own] * 2).sum().backward()
            (expected * weights).sum().backward()
        torch.testing.assert_close(inputs.grad / 2, all_inputs.grad[own])
        for (name, value), other in zip(
            model.named_parameters(), reference.parameters(), strict=True
        ):
            torch.testing.assert_close(value.grad, other.grad, msg=name)
        for (name, value), other in zip(model.named_buffers(), reference.buffers(), strict=True):
            torch.testing.assert_close(value, other, msg=name)
        model.eval()
        torch.testing.assert_close(model(all_inputs), reference.eval()(all_inputs))


def _expect_low_precision(rank):
    norm = convert_sync_batchnorm(nn.BatchNorm2d(2))
    inputs = torch.full((1, 2, 2, 2), float(rank), dtype=torch.bfloat16)
    found = norm(inputs)
    assert found.dtype == torch.bfloat16
    # The mean over ranks is 0.5, the deviation 0.5.
    torch.testing.assert_close(found.float(), torch.full_like(found.float(), 2.0 * rank - 1))
    assert norm.running_mean.dtype == torch.float32


def _expect_own_group(rank):
    groups = [dist.new_group([0]), dist.new_group([1])]
    norm = convert_sync_batchnorm(nn.BatchNorm1d(2), process_group=groups[rank])
    inputs = torch.randn(4, 2) + 5 * rank
    torch.testing.assert_close(norm(inputs), nn.BatchNorm1d(2)(inputs))


def _expect_synchronized_norm(rank):
    _expect_big_batch(rank)
    _expect_own_group(rank)
    norm = convert_sync_batchnorm(nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match="a sample on one rank at least"):
        norm(torch.ones(0, 2))
    assert torch.equal(norm.running_mean, torch.zeros(2))
    _expect_low_precision(rank)


def test_statistics_and_gradients_are_those_of_the_big_batch(run_ranks):
    run_ranks(_expect_synchronized_norm, 2)


@pytest.mark.usefixtures("group_of_one")
def test_wrapper_takes_what_was_converted_on_the_cpu():
    MMDistributedDataParallel(convert_sync_batchnorm(nn.BatchNorm1d(2)))(torch.ones(2, 2))
