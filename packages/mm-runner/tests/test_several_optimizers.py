"""Several optimizers in one run, each over a part of the model."""

import copy

import pytest
import torch
from test_distributed import is_equal_on_all_ranks
from torch import nn
from toy import (
    CPU_LOW_PRECISION,
    NO_VALIDATION,
    Killed,
    StopBeforeEpoch,
    loader_cfg,
    runner_arguments,
    scalars_of,
)
from typing_extensions import override

import mm_dist
from mm_amp import OptimWrapper, OptimWrapperDict
from mm_runner import ComponentNotFoundError, ConfigError, Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel
from mm_runner.optim import build_optim_wrapper, build_param_schedulers

needs_cpu_float16 = pytest.mark.skipif(
    CPU_LOW_PRECISION != "float16", reason="float16 autocast on the CPU needs torch 2.4"
)


class Pair(BaseModel):
    """Two classifiers: ``fast`` steps in every iteration, ``slow`` in every second one."""

    def __init__(self, overflows=()):
        super().__init__()
        self.fast = nn.Linear(4, 3)
        self.slow = nn.Linear(4, 3)
        self.overflows = set(overflows)
        self.num_steps = 0

    def forward(self, inputs, labels, mode="tensor"):
        scores = self.fast(inputs) + self.slow(inputs)
        return (scores, labels) if mode == "predict" else scores

    def train_step(self, data, optim_wrapper):
        names = ["fast", "slow"] if self.num_steps % 2 == 0 else ["fast"]
        losses = {}
        for name in names:
            wrapper, part = optim_wrapper[name], getattr(self, name)
            with wrapper.optim_context(part):
                loss = nn.functional.cross_entropy(part(data["inputs"]).float(), data["labels"])
            if (name, self.num_steps) in self.overflows:
                loss = loss * float("inf")
            wrapper.update_params(loss)
            losses[f"loss_{name}"] = loss.detach()
        self.num_steps += 1
        return losses


SGD = {"optimizer": {"type": "SGD", "lr": 0.5}, "clip_grad": {"max_norm": 9.0}}
ADAM = {"optimizer": {"type": "Adam", "lr": 0.25}, "accumulative_counts": 3}
BOTH = {"constructor": "MultiOptimWrapperConstructor", "fast": SGD, "slow": ADAM}
HALVED = {"type": "ExponentialLR", "gamma": 0.5, "by_epoch": False}


class RecordAllRates(Hook):
    """Keeps the learning rates of every training step."""

    def __init__(self):
        self.rates = []

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        rates = runner.optim_wrapper.get_lr()
        self.rates.append((rates["fast.lr"][0], rates["slow.lr"][0]))


def test_constructor_builds_a_wrapper_over_each_part():
    model = nn.ModuleDict({"module": Pair()})
    cfg = {**BOTH, "module.slow": BOTH["slow"]}
    del cfg["slow"], cfg["fast"]
    wrappers = build_optim_wrapper(model["module"], BOTH)
    assert type(wrappers) is OptimWrapperDict
    assert [type(one.optimizer).__name__ for one in wrappers.values()] == ["SGD", "Adam"]
    assert wrappers["slow"].accumulative_counts == 3
    assert wrappers.param_groups["fast"][0]["params"] == list(model["module"].fast.parameters())
    nested = build_optim_wrapper(model, cfg)
    assert nested.param_groups["module.slow"][0]["params"] == list(
        model["module"].slow.parameters()
    )


def test_ready_wrappers_come_as_they_are():
    model = Pair()
    ready = {
        name: OptimWrapper(torch.optim.SGD(getattr(model, name).parameters(), lr=0.1))
        for name in ("fast", "slow")
    }
    wrappers = OptimWrapperDict(**ready)
    assert build_optim_wrapper(model, wrappers) is wrappers
    assert dict(build_optim_wrapper(model, ready).items()) == ready
    mixed = build_optim_wrapper(model, {**BOTH, "slow": ready["slow"]})
    assert mixed["slow"] is ready["slow"]
    assert mixed["fast"].defaults["lr"] == 0.5


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"fats": SGD},
            ConfigError,
            r"optim_wrapper\.fats: Pair has no part 'fats'; it has .*'fast'",
        ),
        (
            {"fast": {"optimizer": {"type": "SGD", "rl": 1}}},
            ConfigError,
            r"optim_wrapper\.fast\.opt",
        ),
        ({"paramwise_cfg": {"x": 1}}, ConfigError, r"fast\.paramwise_cfg\.x: unknown key"),
        ({"constructor": "Multi"}, ComponentNotFoundError, r"No optim wrapper constructor named"),
    ],
    ids=["part", "argument", "paramwise", "constructor"],
)
def test_wrong_configs_are_named_by_their_path(change, error, message):
    with pytest.raises(error, match=message):
        build_optim_wrapper(Pair(), {**BOTH, **change})
    with pytest.raises(ConfigError, match="configs by name of a part"):
        build_optim_wrapper(Pair(), {"constructor": "MultiOptimWrapperConstructor"})


def test_schedules_are_for_all_or_by_name():
    wrappers = build_optim_wrapper(Pair(), BOTH)

    def build(cfg):
        built = build_param_schedulers(wrappers, cfg, num_epochs=1, num_iters=9)
        return {name: len(own) for name, own in built.items()}

    assert build(None) == {"fast": 0, "slow": 0}
    assert build(HALVED) == {"fast": 1, "slow": 1}
    assert build([HALVED, HALVED]) == {"fast": 2, "slow": 2}
    assert build({"slow": [HALVED]}) == {"fast": 0, "slow": 1}
    with pytest.raises(ConfigError, match=r"param_scheduler\.slwo: there is no .*'slow'"):
        build({"slwo": HALVED})
    with pytest.raises(ConfigError, match=r"param_scheduler\.slow\[1\]\.gama"):
        build({"slow": [HALVED, {**HALVED, "gama": 1}]})


def test_a_run_trains_logs_and_scales_each(make_runner):
    recorded = RecordAllRates()
    runner = make_runner(
        model=Pair(),
        optim_wrapper=BOTH,
        param_scheduler={"slow": HALVED},
        custom_hooks=[recorded],
        auto_scale_lr={"base_batch_size": 4, "enable": True},
        train_cfg={"max_epochs": 1},
        default_hooks={"logger": {"type": "LoggerHook", "interval": 1}},
    )
    before = [value.clone() for value in runner.model.state_dict().values()]
    runner.train()
    after = runner.model.state_dict().values()
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    # The slow one accumulates three times the batch that its rate is for.
    assert recorded.rates == [(0.5, 0.75 * 0.5**step) for step in range(6)]
    first, second, *_ = [one for one in scalars_of(runner) if one["mode"] == "train"]
    assert (second["fast.lr"], second["slow.lr"]) == (0.5, 0.375)
    assert {"loss_fast", "loss_slow", "fast.grad_norm"} <= first.keys()
    assert "slow.grad_norm" not in first
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert "fast: SGD in OptimWrapper" in log
    assert "slow: Adam in OptimWrapper" in log
    assert "learning rates of slow times 3." in log
    assert "slow: 12 = 4 per rank x 1 rank(s) x 3 accumulated" in log
    assert "fast: 4 = 4 per rank x 1 rank(s) x 1 accumulated" in log
    assert "[1][1/6]  fast.lr: 5.0000e-01  slow.lr: 7.5000e-01  eta" in log


def test_resumed_run_equals_one_that_was_never_stopped(make_runner, tmp_path):
    arguments = {
        "optim_wrapper": BOTH,
        "param_scheduler": HALVED,
        "train_cfg": {"max_epochs": 4},
        **NO_VALIDATION,
    }
    model = Pair()
    other = copy.deepcopy(model)
    rates = RecordAllRates(), RecordAllRates()
    whole = make_runner(
        work_dir=tmp_path / "whole", model=model, custom_hooks=[rates[0]], **arguments
    )
    whole.train()

    parts = tmp_path / "parts"
    with pytest.raises(Killed):
        make_runner(
            work_dir=parts, model=other, custom_hooks=[rates[1], StopBeforeEpoch(2)], **arguments
        ).train()
    checkpoint = load_checkpoint_file(parts / "epoch_2.pth")
    assert set(checkpoint["optimizer"]) == {"fast", "slow"}
    assert set(checkpoint["param_schedulers"]) == {"fast", "slow"}
    resumed = make_runner(
        work_dir=parts, model=Pair(), resume=True, custom_hooks=[rates[1]], **arguments
    )
    resumed.train()
    assert rates[1].rates == rates[0].rates
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value)


@needs_cpu_float16
def test_skipped_step_holds_the_schedules_of_its_own_optimizer_once(make_runner):
    half = {
        "type": "AmpOptimWrapper",
        "dtype": "float16",
        "loss_scale": {"init_scale": 64.0},
        "optimizer": {"type": "SGD", "lr": 0.5},
    }
    recorded = RecordAllRates()
    runner = make_runner(
        model=Pair(overflows={("slow", 0), ("fast", 3)}),
        optim_wrapper={**BOTH, "fast": half, "slow": half},
        param_scheduler={**HALVED, "gamma": 0.9},
        custom_hooks=[recorded],
        train_cfg={"max_epochs": 1},
        **NO_VALIDATION,
    )
    runner.train()
    assert runner.optim_wrapper.num_skipped == 2
    steps = [(0, 0), (1, 0), (2, 1), (3, 2), (3, 3), (4, 4)]  # slow is not called in 1, 3 and 5
    expected = [(0.5 * 0.9**fast, 0.5 * 0.9**slow) for fast, slow in steps]
    assert torch.allclose(torch.tensor(recorded.rates), torch.tensor(expected), rtol=1e-6)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("kind", ["MMDistributedDataParallel", "DistributedDataParallel"])
def test_wrapper_that_steps_the_model_as_a_whole_is_refused(make_runner, kind):
    runner = make_runner(
        model=Pair(), optim_wrapper=BOTH, cfg={"model_wrapper_cfg": {"type": kind}}
    )
    with pytest.raises(ConfigError, match=rf"fast, slow, and {kind} .*MMSeparateDistributed"):
        runner.train()


def _train(rank, work_dir):
    torch.manual_seed(rank)
    runner = Runner(
        **runner_arguments(
            work_dir,
            model=Pair(),
            optim_wrapper={**BOTH, "slow": {**SGD, "accumulative_counts": 2}},
            cfg={"model_wrapper_cfg": {"type": "MMSeparateDistributedDataParallel"}},
            train_dataloader=loader_cfg(batch_size=2),
        )
    )
    runner.train()
    assert isinstance(runner.model, mm_dist.MMSeparateDistributedDataParallel)
    assert is_equal_on_all_ranks(runner.model)
    assert runner.optim_wrapper["slow"].inner_count == 6
    names = load_checkpoint_file(runner.work_dir / "epoch_2.pth")["state_dict"]
    assert list(names) == list(Pair().state_dict())


def test_ranks_train_alike_in_separate_wrappers(run_ranks, tmp_path):
    run_ranks(_train, 2, tmp_path)
