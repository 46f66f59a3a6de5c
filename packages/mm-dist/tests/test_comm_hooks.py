"""Gradients that travel rounded or approximated, on gloo."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mm_dist import ConfigError, MMDistributedDataParallel
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
            model = MMDistributedDataParallel(Net(), comm_hook=name, **options)
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
                torch.testing.assert_close(gradient, mean, rtol=torch.finfo(dtype).eps, atol=1e-7)
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


def _expect_hooks(rank):
    _expect_rounded_means(rank)
    _expect_half_model(rank)


def test_hooks_average_over_ranks(run_ranks):
    run_ranks(_expect_hooks, 2)


@pytest.mark.parametrize("hook", ["zip", 16, {"type": "fp16"}])
@pytest.mark.usefixtures("group_of_one")
def test_hook_that_cannot_be_used_is_refused(hook):
    with pytest.raises(ConfigError, match=r"is not known; .* register_comm_hook\(state, hook\)"):
        MMDistributedDataParallel(nn.Linear(2, 1), comm_hook=hook)


def test_hooks_do_not_bear_the_names_that_torch_refuses():
    # torch decides by name whether a hook needs CUDA and NCCL.
    refused = {"bf16_compress_hook", "bf16_compress_wrapper_hook"}
    assert average_compressed.__name__ not in refused


@pytest.mark.skipif(not hasattr(dist, "init_device_mesh"), reason="torch before 2.2")
def test_backward_without_peers_on_the_fake_backend():
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=64)
    try:
        model = MMDistributedDataParallel(Net())
        model.register_comm_hook(None, no_communication)
        for _ in range(2):
            model(_batch(0)).backward()
        assert model.module.head.bias.grad.item() == 8.0
    finally:
        dist.destroy_process_group()
