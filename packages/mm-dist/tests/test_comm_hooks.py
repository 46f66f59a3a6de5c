"""Gradients that travel rounded or approximated, on gloo."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mm_dist import ArgumentTypeError, ConfigError, MMDistributedDataParallel, all_gather
from mm_dist._wrappers._comm_hooks import average_compressed, no_communication

_HAS_BFLOAT16 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)  # gloo's sums
_DTYPES = {"fp16": torch.float16, **({"bf16": torch.bfloat16} if _HAS_BFLOAT16 else {})}


class Net(nn.Module):
    def __init__(self, *, has_unused=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*[nn.Linear(32, 32, bias=i % 2 == 0) for i in range(4)])
        self.head = nn.Linear(32, 1)
        self.unused = nn.Linear(32, 1) if has_unused else None

    def forward(self, inputs):
        return self.head(self.layers(inputs).tanh()).sum()


class Weigh(nn.Module):
    """No matrix product: float16 has none on the CPU of older torch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 4))

    def forward(self, dtype):
        return (self.weight * torch.full((1, 4), 0.5, dtype=dtype)).sum()


def _batch(rank, step=0):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 32, generator=generator)


def _local_gradients(rank):
    net = Net()
    net(_batch(rank)).backward()
    return [parameter.grad for parameter in net.parameters()]


def _expect_rounded_means(rank):
    for name, dtype in _DTYPES.items():
        for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.004}):
            for hook in (name, {"type": name}):
                model = MMDistributedDataParallel(Net(), comm_hook=hook, **options)
                model(_batch(rank)).backward()
                found = [parameter.grad for parameter in model.module.parameters()]
                for gradient, first, second in zip(
                    found, _local_gradients(0), _local_gradients(1), strict=True
                ):
                    assert gradient.dtype == torch.float32
                    # What was sent is rounded once, and the sum of two at most once more.
                    exact = first / 2 + second / 2
                    scale = (first / 2).abs() + (second / 2).abs()
                    error = (gradient - exact).abs()
                    assert (error <= scale * torch.finfo(dtype).eps + 1e-7).all()
                    mean = (first / 2).to(dtype).float() + (second / 2).to(dtype).float()
                    torch.testing.assert_close(
                        gradient, mean, rtol=torch.finfo(dtype).eps, atol=1e-7
                    )
                assert not all(
                    torch.equal(gradient, first / 2 + second / 2)
                    for gradient, first, second in zip(
                        found, _local_gradients(0), _local_gradients(1), strict=True
                    )
                ), "nothing was rounded"


def _expect_half_model(_):
    # Parameters of that dtype: the mean of equal gradients is that gradient, exactly.
    for name, dtype in _DTYPES.items():
        model = MMDistributedDataParallel(Weigh().to(dtype), comm_hook=name)
        model(dtype).backward()
        assert model.module.weight.grad.dtype == dtype
        assert model.module.weight.grad.tolist() == [[0.5] * 4]
    # Gradients that overflow float16 if ranks add them before they divide.
    model = MMDistributedDataParallel(nn.Linear(4, 1), comm_hook="fp16")
    model(torch.full((1, 4), 60000.0)).sum().backward()
    assert model.module.weight.grad.tolist() == [[60000.0] * 4]


def _expect_power_sgd(rank):
    for options in (
        {},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.006},
    ):
        hook = {"type": "powerSGD", "matrix_approximation_rank": 2, "start_powerSGD_iter": 2}
        net = Net(has_unused="find_unused_parameters" in options)
        model = MMDistributedDataParallel(net, comm_hook=hook, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        losses = []
        for step in range(12):
            loss = model(_batch(rank, step % 2))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-2] < losses[0]
        for parameter in model.parameters():
            first, second = all_gather(parameter)
            assert torch.equal(first, second), options


def _gradients_by_power_sgd(rank, num_steps, *, has_local_step=False, **options):
    """Return the gradients of each step, for the same batch in all, and the wrapper."""
    hook = {"type": "powerSGD", "start_powerSGD_iter": 2, "min_compression_rate": 0.1, **options}
    model = MMDistributedDataParallel(Net(), comm_hook=hook)
    found = []
    for _ in range(num_steps):
        if has_local_step:
            with model.no_sync():
                model(_batch(rank)).backward()
        model(_batch(rank)).backward()
        found.append([parameter.grad.clone() for parameter in model.module.parameters()])
        model.zero_grad()
    return found, model


def _expect_power_sgd_values(rank):
    exact = [
        (first + second) / 2
        for first, second in zip(_local_gradients(0), _local_gradients(1), strict=True)
    ]
    # Of full rank, and in the steps before it begins, nothing is lost.
    steps, _ = _gradients_by_power_sgd(rank, 4, matrix_approximation_rank=32)
    for step in steps:
        torch.testing.assert_close(step, exact, rtol=1e-3, atol=1e-4)
    steps, _ = _gradients_by_power_sgd(rank, 4, matrix_approximation_rank=32, has_local_step=True)
    torch.testing.assert_close(steps[-1], [2 * value for value in exact], rtol=1e-3, atol=1e-4)

    # Of a low one it is kept for the next steps: what was sent and what is left make the whole.
    num_steps = 6
    steps, model = _gradients_by_power_sgd(rank, num_steps, matrix_approximation_rank=1)
    assert not torch.allclose(steps[-1][0], exact[0], rtol=1e-2)
    (left,) = model.comm_hook_state.error_dict.values()
    left = sum(all_gather(left)) / 2
    sent = [sum(values) for values in zip(*steps, strict=True)]
    missing = [num_steps * value - part for value, part in zip(exact, sent, strict=True)]
    # Which part of a bucket a parameter has is torch's business.
    total = sum(value.square().sum() for value in missing)
    torch.testing.assert_close(left.square().sum(), total, rtol=1e-3, atol=1e-4)


def _expect_hooks(rank):
    _expect_rounded_means(rank)
    _expect_power_sgd_values(rank)
    _expect_half_model(rank)
    _expect_power_sgd(rank)


def test_hooks_average_over_ranks(run_ranks):
    run_ranks(_expect_hooks, 2)


@pytest.mark.usefixtures("group_of_one")
def test_function_is_used_as_a_hook():
    model = MMDistributedDataParallel(nn.Linear(2, 1), comm_hook=no_communication)
    model(torch.ones(1, 2)).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.0, 1.0]]

    seen = []

    def hook(state, bucket):
        seen.append(state)
        return no_communication(None, bucket)

    model = MMDistributedDataParallel(nn.Linear(2, 1), comm_hook={"type": hook, "state": 7})
    model(torch.ones(1, 2)).sum().backward()
    assert seen == [7]
    assert model.comm_hook_state == 7


@pytest.mark.parametrize(
    ("hook", "error", "message"),
    [
        ("zip", ConfigError, "comm_hook='zip' is not known; there are: fp16, bf16, powerSGD"),
        (16, ArgumentTypeError, "give a name, a function"),
        ({"state": 1}, ArgumentTypeError, "give a name, a function"),
        ({"type": "fp16", "rank": 1}, ConfigError, "'fp16' has no options rank"),
        (
            {"type": "powerSGD", "start_powerSGD_it": 5},
            ConfigError,
            "unexpected keyword argument 'start_powerSGD_it'",
        ),
        ({"type": "powerSGD", "start_powerSGD_iter": 1}, ConfigError, "start_powerSGD_iter"),
        ({"type": no_communication, "mode": 1}, ConfigError, "has no options mode"),
    ],
)
@pytest.mark.usefixtures("group_of_one")
def test_hook_that_cannot_be_used_is_refused(hook, error, message):
    with pytest.raises(error, match=message):
        MMDistributedDataParallel(nn.Linear(2, 1), comm_hook=hook)


@pytest.mark.usefixtures("group_of_one")
def test_hook_given_does_not_change():
    hook = {"type": "powerSGD", "start_powerSGD_iter": 3}
    MMDistributedDataParallel(nn.Linear(2, 1), comm_hook=hook)
    assert hook == {"type": "powerSGD", "start_powerSGD_iter": 3}


def test_hooks_do_not_bear_the_names_that_torch_refuses():
    # torch decides by name whether a hook needs CUDA and NCCL.
    refused = {"bf16_compress_hook", "bf16_compress_wrapper_hook"}
    assert average_compressed.__name__ not in refused


@pytest.mark.skipif(not hasattr(dist, "init_device_mesh"), reason="torch before 2.2")
def test_backward_without_peers_on_the_fake_backend():
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=64)
    try:
        model = MMDistributedDataParallel(Net(), comm_hook=no_communication)
        for _ in range(2):
            model(_batch(0)).backward()
        assert model.module.head.bias.grad.item() == 8.0
    finally:
        dist.destroy_process_group()
