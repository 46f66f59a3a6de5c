import pytest
import torch
from test_several_optimizers import BOTH, Pair
from toy import CPU_LOW_PRECISION, NO_VALIDATION, Classifier, log_of, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.diagnostics import GradientSpikeHook
from mm_runner.hooks import Hook

RELEASE = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))


class Scale(Hook):
    """Multiplies the inputs of some steps, counted from 1."""

    priority = "HIGHEST"

    def __init__(self, factors):
        self.factors = factors

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        data_batch["inputs"].mul_(self.factors.get(runner.iter + 1, 1.0))


def train(make_runner, *hooks, factors=None, optim=None, **options):
    spikes = {"type": "GradientSpikeHook", "warmup": 3, "interval": 4, "factor": 8, **options}
    runner = make_runner(
        custom_hooks=[spikes, Scale({7: 1e4} if factors is None else factors), *hooks],
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01}, **(optim or {})},
        default_hooks={"checkpoint": None},
        **NO_VALIDATION,
    )
    runner.train()
    return [
        line.partition("GradientSpikeHook: ")[2]
        for line in log_of(runner).splitlines()
        if "GradientSpikeHook: " in line
    ]


def test_a_spike_is_named_with_its_step_and_group(make_runner):
    optim = {
        "optimizer": {"type": "SGD", "lr": 1e-9},  # the spike does not spoil what follows
        "paramwise_cfg": {"custom_keys": {"layers.0": {"lr_mult": 0.5}}},
    }
    lines = train(make_runner, optim=optim)
    assert [line.split(":")[0] for line in lines] == [
        "step 7, parameter group 0 (layers.0.weight and 1 more)",
        "step 7, parameter group 1 (layers.3.weight and 1 more)",
    ]
    assert "its running mean is" in lines[0]


def test_a_quiet_run_and_a_warm_up_have_none(make_runner):
    assert train(make_runner, factors={}) == []
    assert train(make_runner, factors={2: 1e4, 3: 1e4}) == []


def test_a_spike_does_not_hide_the_next(make_runner):
    optim = {"optimizer": {"type": "SGD", "lr": 1e-9}}
    lines = train(make_runner, factors={7: 1e4, 8: 1e4, 12: float("nan")}, optim=optim)
    assert [line.split(",")[0] for line in lines] == ["step 7", "step 8", "step 12"]


def test_each_of_several_optimizers_is_watched(make_runner):
    wrappers = {name: dict(BOTH[name]) for name in ("fast", "slow")}
    wrappers["fast"].pop("clip_grad")
    wrappers["slow"]["accumulative_counts"] = 1
    runner = make_runner(
        model={"type": Pair},
        optim_wrapper={**wrappers, "constructor": BOTH["constructor"]},
        custom_hooks=[
            {"type": "GradientSpikeHook", "warmup": 2, "interval": 100},
            Scale({7: -1e6}),
        ],
        default_hooks={"checkpoint": None},
        **NO_VALIDATION,
    )
    runner.train()
    log = log_of(runner)
    assert "step 7, parameter group 0 (fast.weight" in log
    assert "step 7, parameter group 0 (slow.weight" in log


def _train_shards(rank, work_dir):
    factor = 1e4 if rank == 1 else 1.0  # its gradients are averaged into rank 0's shards
    spikes = {"type": "GradientSpikeHook", "warmup": 2, "interval": 1}
    runner = Runner(
        **runner_arguments(
            work_dir,
            model={"type": Classifier},
            custom_hooks=[spikes, Scale({4: factor})],
            default_hooks={"checkpoint": None},
            launcher="none",
            cfg={"model_wrapper_cfg": {"type": "MMFullyShardedDataParallel"}},
            **NO_VALIDATION,
        )
    )
    runner.train()
    if rank == 0:
        assert "step 4, parameter group 0" in log_of(runner)


@pytest.mark.skipif(RELEASE < (2, 8), reason="shards on the CPU need torch 2.8")
def test_a_spike_of_sharded_gradients_is_seen(run_ranks, tmp_path):
    run_ranks(_train_shards, 2, str(tmp_path))


def test_wrong_arguments_are_named():
    with pytest.raises(ConfigError, match=r"factor: a number above 1, got 1"):
        GradientSpikeHook(factor=1)


def test_gradients_are_measured_before_they_are_clipped(make_runner):
    optim = {"clip_grad": {"max_norm": 0.1}}  # all are clipped to the same norm
    assert [line.split(",")[0] for line in train(make_runner, optim=optim)] == ["step 7"]


def test_an_overflow_is_left_to_the_scaler(make_runner):
    if CPU_LOW_PRECISION != "float16":
        pytest.skip("float16 on the CPU needs torch 2.4")
    optim = {"type": "AmpOptimWrapper", "dtype": "float16", "loss_scale": {"init_scale": 8.0}}
    assert train(make_runner, factors={7: float("inf")}, optim=optim) == []
