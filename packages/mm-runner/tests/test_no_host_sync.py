import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toy import NO_VALIDATION
from typing_extensions import override

from mm_runner.hooks import Hook


class CountScalarReads(TorchDispatchMode):
    """Counts what makes the host wait for the device: ``item()``, ``float()``, ``bool()``."""

    def __init__(self):
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class Steps(Hook):
    """Keeps how many reads there were after the last hook of each step."""

    priority = "LOWEST"

    def __init__(self, counter):
        self.counter = counter
        self.reads = []

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.reads.append(self.counter.reads)


def train_counting(make_runner, *hooks, **overrides):
    counter = CountScalarReads()
    steps = Steps(counter)
    runner = make_runner(custom_hooks=[*hooks, steps], **NO_VALIDATION, **overrides)
    with counter:
        runner.train()
    return steps


def test_the_counter_counts():
    with CountScalarReads() as counter:
        assert torch.ones(()) == 1
        torch.ones(()).item()
    assert counter.reads == 2


@pytest.mark.parametrize("wrapper", ["OptimWrapper", "AmpOptimWrapper"])
def test_a_training_step_never_waits_for_the_device(make_runner, wrapper):
    options = {"dtype": "bfloat16"} if wrapper == "AmpOptimWrapper" else {}
    steps = train_counting(
        make_runner,
        train_cfg={"max_epochs": 1},
        optim_wrapper={
            "type": wrapper,
            "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
            "clip_grad": {"max_norm": 1.0},
            "accumulative_counts": 2,
            **options,
        },
        param_scheduler={"type": "CosineAnnealingLR", "by_epoch": False},
        default_hooks={"logger": {"interval": 1000}},
    )
    assert len(steps.reads) == 6
    assert steps.reads[-2] - steps.reads[0] == 0
    assert steps.reads[-1] - steps.reads[-2] == 9  # its line: six losses, three norms


def test_each_loss_is_read_once_and_only_when_a_line_is_due(make_runner):
    steps = train_counting(
        make_runner, train_cfg={"max_epochs": 1}, default_hooks={"logger": {"interval": 3}}
    )
    pairs = zip(steps.reads, steps.reads[1:], strict=False)
    assert [after - before for before, after in pairs] == [0, 3, 0, 0, 3]


@pytest.mark.parametrize(
    "hook",
    [
        {"type": "ThroughputHook", "interval": 100, "flops_per_sample": 1.0},
        {"type": "GradientSpikeHook", "warmup": 2},
    ],
    ids=["throughput", "spikes"],
)
def test_diagnostics_read_nothing_from_the_device_in_a_step(make_runner, hook):
    steps = train_counting(
        make_runner,
        hook,
        train_cfg={"max_epochs": 1},
        default_hooks={"logger": {"interval": 100}, "checkpoint": None},
    )
    assert steps.reads[-2] == steps.reads[0]
    assert steps.reads[-1] - steps.reads[-2] == 6  # its line: six losses
