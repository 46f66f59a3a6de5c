import pytest
import torch
from test_no_host_sync import CountScalarReads
from test_several_optimizers import BOTH, Pair
from toy import (
    CPU_LOW_PRECISION,
    NO_VALIDATION,
    Classifier,
    Killed,
    StopBeforeEpoch,
    runner_arguments,
)
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.diagnostics import GradientSpikeHook
from mm_runner.hooks import Hook


class Scale(Hook):
    """Multiplies the inputs of some steps, counted from 1."""

    priority = "HIGHEST"

    def __init__(self, factors):
        self.factors = factors

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        data_batch["inputs"].mul_(self.factors.get(runner.iter + 1, 1.0))


class Weights(Hook):
    def __init__(self):
        self.after = []

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.after.append(runner.model.layers[0].weight.detach().clone())


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
        for line in next(runner.log_dir.glob("*.log")).read_text().splitlines()
        if "GradientSpikeHook: " in line
    ]


def test_a_spike_is_named_with_its_step_and_group(make_runner):
    optim = {
        "optimizer": {"type": "SGD", "lr": 1e-9},  # the spike does not spoil what follows
        "paramwise_cfg": {"custom_keys": {"layers.0": {"lr_mult": 0.5}}},
    }
    lines = train(make_runner, optim=optim)
    assert [line.split(":")[0] for line in lines] == [
        "step 7, parameter group 0 (layers.0.weight, layers.0.bias)",
        "step 7, parameter group 1 (layers.3.weight, layers.3.bias)",
    ]
    assert "its running mean is" in lines[0]


def test_a_quiet_run_and_a_warm_up_have_none(make_runner):
    assert train(make_runner, factors={}) == []
    assert train(make_runner, factors={2: 1e4, 3: 1e4}) == []


def test_a_spike_does_not_hide_the_next(make_runner):
    lines = train(make_runner, factors={7: 1e4, 8: 1e4, 12: float("nan")}, policy="skip")
    assert [line.split(",")[0] for line in lines] == ["step 7", "step 8", "step 12"]


@pytest.mark.parametrize("factor", [1e4, float("inf")])
def test_a_step_with_a_spike_is_left_out(make_runner, factor):
    weights = Weights()
    lines = train(make_runner, weights, factors={7: factor}, policy="skip")
    assert lines[0].endswith("; its gradients were set to zero.")
    changed = [not one.equal(other) for one, other in zip(weights.after, weights.after[1:])]  # noqa: B905
    assert changed == [True] * 5 + [False] + [True] * 5


def test_each_of_several_optimizers_is_watched(make_runner):
    wrappers = {name: dict(BOTH[name]) for name in ("fast", "slow")}
    wrappers["fast"].pop("clip_grad")
    wrappers["slow"]["accumulative_counts"] = 1
    runner = make_runner(
        model={"type": Pair},
        optim_wrapper={**wrappers, "constructor": BOTH["constructor"]},
        custom_hooks=[
            {"type": "GradientSpikeHook", "warmup": 2, "interval": 100, "policy": "skip"},
            Scale({7: -1e6}),
        ],
        default_hooks={"checkpoint": None},
        **NO_VALIDATION,
    )
    runner.train()
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert "step 7, fast, parameter group 0 (fast.weight" in log
    assert "step 7, slow, parameter group 0 (slow.weight" in log


def test_looking_reads_nothing_from_the_device(make_runner):
    counts = []

    class Reads(Hook):
        priority = "LOWEST"

        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            counts.append(counter.reads)

    spikes = {"type": "GradientSpikeHook", "warmup": 2, "policy": "skip"}
    with CountScalarReads() as counter:
        make_runner(
            custom_hooks=[spikes, Reads()],
            default_hooks={"logger": {"interval": 100}, "checkpoint": None},
            train_cfg={"max_epochs": 1},
            **NO_VALIDATION,
        ).train()
    assert counts[-1] == counts[0]


def test_a_resumed_run_knows_what_is_usual(make_runner, tmp_path):
    def make(part, *hooks, **options):
        spikes = {"type": "GradientSpikeHook", "warmup": 4, "interval": 1, "factor": 8}
        return make_runner(
            work_dir=tmp_path / part,
            custom_hooks=[spikes, Scale({7: 1e4}), *hooks],
            **NO_VALIDATION,
            **options,
        )

    make("whole").train()
    with pytest.raises(Killed):
        make("parts", StopBeforeEpoch(1)).train()
    make("parts", resume=True).train()
    found = [
        [
            line.partition("GradientSpikeHook: ")[2]
            for path in sorted((tmp_path / part).glob("*/*.log"))
            for line in path.read_text().splitlines()
            if "GradientSpikeHook: " in line
        ]
        for part in ("whole", "parts")
    ]
    assert found[0] == found[1]
    assert found[0][0].startswith("step 7, ")


def _skip_on_ranks(_rank, work_dir, wrappers):
    for wrapper in wrappers:
        _skip_with(f"{work_dir}/{wrapper}", wrapper)


def _skip_with(work_dir, wrapper):
    options = {} if wrapper is None else {"cfg": {"model_wrapper_cfg": {"type": wrapper}}}
    spikes = {"type": "GradientSpikeHook", "warmup": 2, "interval": 1, "policy": "skip"}
    factor = 1e4 if torch.distributed.get_rank() == 1 else 1.0  # one rank alone sees it
    runner = Runner(
        **runner_arguments(
            work_dir,
            model={"type": Classifier},
            custom_hooks=[spikes, Scale({4: factor})],
            default_hooks={"checkpoint": None},
            launcher="none",
            **options,
            **NO_VALIDATION,
        )
    )
    watches = []

    class Norms(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            hook = next(one for one in runner.hooks if isinstance(one, GradientSpikeHook))
            watches.append(hook.state_dict()[""]["means"].clone())

    runner.register_hook(Norms())
    runner.train()
    means = torch.stack(watches)
    other = [torch.empty_like(means) for _ in range(2)]
    torch.distributed.all_gather(other, means)
    assert other[0].equal(other[1])
    assert means[3].equal(means[2])  # the spike left no trace
    assert not means[4].equal(means[3])


def test_ranks_skip_the_same_step(run_ranks, tmp_path):
    shards = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 8)  # on the CPU
    wrappers = [None, *["MMFullyShardedDataParallel"] * shards]
    run_ranks(_skip_on_ranks, 2, str(tmp_path), wrappers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "stop"}, r"policy: 'warn' or 'skip' is needed, got 'stop'"),
        ({"factor": 1}, r"factor: a number above 1, got 1"),
        ({"warmup": -1}, r"warmup: an integer >= 0 is needed, got -1"),
        ({"interval": 0}, r"interval: an integer >= 1 is needed, got 0"),
    ],
    ids=["policy", "factor", "warmup", "interval"],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        GradientSpikeHook(**options)


@pytest.mark.parametrize("policy", ["warn", "skip"])
def test_gradients_are_looked_at_before_they_are_clipped(make_runner, policy):
    weights = Weights()
    optim = {"clip_grad": {"max_norm": 0.1}}  # all are clipped to the same norm
    lines = train(make_runner, weights, optim=optim, policy=policy)
    assert [line.split(",")[0] for line in lines] == ["step 7"]
    changed = [not one.equal(other) for one, other in zip(weights.after, weights.after[1:])]  # noqa: B905
    assert changed == [True] * 5 + [policy == "warn"] + [True] * 5


def test_an_overflow_is_left_to_the_scaler(make_runner):
    if CPU_LOW_PRECISION != "float16":
        pytest.skip("float16 on the CPU needs torch 2.4")
    optim = {"type": "AmpOptimWrapper", "dtype": "float16", "loss_scale": {"init_scale": 8.0}}
    assert train(make_runner, factors={7: float("inf")}, optim=optim, policy="skip") == []
