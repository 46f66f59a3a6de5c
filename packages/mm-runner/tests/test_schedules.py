"""MMEngine's families of schedules, against their formulas and against torch's."""

import math
from contextlib import nullcontext

import pytest
import torch
from test_resume_midway import StopAfter
from toy import CPU_LOW_PRECISION, NO_VALIDATION, Killed, RecordRates, Scripted, loader_cfg
from typing_extensions import override

from mm_runner import ComponentNotFoundError, ConfigError
from mm_runner.hooks import Hook
from mm_runner.optim import build_param_scheduler

STEPS = 24
LENGTH = 20


def make_optimizer(kind=torch.optim.SGD, **options):
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in (1.0, 0.3)]
    return kind(groups, **{"lr": 1.0, **options})


def make(optimizer, *, num_epochs=LENGTH, num_iters=10 * LENGTH, **cfg):
    return build_param_scheduler(optimizer, cfg, num_epochs=num_epochs, num_iters=num_iters)


def values_of(optimizer, *schedulers, steps=STEPS, key="lr"):
    """The value of both groups before each step."""
    values = []
    for _ in range(steps):
        values.append([float(group[key]) for group in optimizer.param_groups])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return values


def clipped(step):
    """The step within the window, whose last one's value stays."""
    return min(step, LENGTH - 1)


def cosine(step, length, floor=0.0):
    return floor + (1 - floor) * (1 + math.cos(math.pi * step / length)) / 2


CLOSED_FORMS = [
    ({"type": "Constant", "factor": 0.2}, lambda t: 0.2 if t < LENGTH - 1 else 1.0),
    (
        {"type": "Linear", "start_factor": 0.1, "end_factor": 0.8},
        lambda t: 0.1 + 0.7 * clipped(t) / (LENGTH - 1),
    ),
    ({"type": "Linear", "start_factor": 0}, lambda t: clipped(t) / (LENGTH - 1)),
    ({"type": "Exponential", "gamma": 0.7}, lambda t: 0.7 ** clipped(t)),
    ({"type": "Step", "step_size": 3, "gamma": 0.4}, lambda t: 0.4 ** (clipped(t) // 3)),
    (
        {"type": "MultiStep", "milestones": [2, 5, 5], "gamma": 0.4},
        lambda t: 0.4 ** ((t >= 2) + 2 * (t >= 5)),
    ),
    ({"type": "CosineAnnealing"}, lambda t: cosine(clipped(t), LENGTH)),
    (
        {"type": "CosineAnnealing", "T_max": 6, "eta_min_ratio": 0.1},
        lambda t: cosine(clipped(t), 6, 0.1),
    ),
    ({"type": "Poly", "power": 0.9}, lambda t: (1 - clipped(t) / (LENGTH - 1)) ** 0.9),
    (
        {"type": "CosineRestart", "periods": [5, 4], "restart_weights": [1, 0.5]},
        lambda t: cosine(t, 5) if t < 5 else 0.5 * cosine(min(t, 8) - 5, 4),
    ),
]


@pytest.mark.parametrize("begin", [0, 3])
@pytest.mark.parametrize(
    ("cfg", "form"), CLOSED_FORMS, ids=[f"{i}-{c['type']}" for i, (c, _) in enumerate(CLOSED_FORMS)]
)
def test_each_family_follows_its_formula_for_every_setting(cfg, form, begin):
    expected = [[1.0, 0.3]] * begin + [[form(t), 0.3 * form(t)] for t in range(STEPS - begin)]
    for ending in ("LR", "Momentum", "ParamScheduler"):
        name = {"LR": "lr", "Momentum": "momentum", "ParamScheduler": "weight_decay"}[ending]
        optimizer = make_optimizer(momentum=0.9)
        for group, value in zip(optimizer.param_groups, (1.0, 0.3), strict=True):
            group[name] = value
        options = {"param_name": name} if ending == "ParamScheduler" else {}
        arguments = {**cfg, **options, "type": cfg["type"] + ending}
        scheduler = make(optimizer, **arguments, begin=begin, end=begin + LENGTH)
        found = values_of(optimizer, scheduler, key=name)
        for values, right in zip(found, expected, strict=True):
            assert values == pytest.approx(right, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("cfg", "torchs"),
    [
        ({"type": "ConstantLR", "factor": 0.2}, {"total_iters": LENGTH - 1}),
        ({"type": "LinearLR", "start_factor": 0.1}, {"total_iters": LENGTH - 1}),
        ({"type": "ExponentialLR", "gamma": 0.7}, {}),
        ({"type": "StepLR", "step_size": 3}, {}),
        ({"type": "MultiStepLR", "milestones": [2, 5, 5]}, {}),
        ({"type": "CosineAnnealingLR", "T_max": 7, "eta_min": 0.05}, {}),
        ({"type": "OneCycleLR", "eta_max": 2.0}, {"cycle_momentum": False}),
        (
            {"type": "OneCycleLR", "eta_max": 2.0, "anneal_strategy": "linear", "pct_start": 0.1},
            {"cycle_momentum": False, "three_phase": False},
        ),
        (
            {"type": "OneCycleLR", "eta_max": 2.0, "three_phase": True},
            {"cycle_momentum": False},
        ),
    ],
    ids=lambda cfg: cfg.get("type", ""),
)
def test_a_family_of_torchs_has_torchs_values(cfg, torchs):
    ours, theirs = make_optimizer(), make_optimizer()
    arguments = {name: value for name, value in cfg.items() if name != "type"}
    if cfg["type"] == "OneCycleLR":
        arguments["max_lr"] = arguments.pop("eta_max")
        arguments["total_steps"] = LENGTH
    reference = getattr(torch.optim.lr_scheduler, cfg["type"])(theirs, **arguments, **torchs)
    found = values_of(ours, make(ours, **cfg), steps=LENGTH - 1)
    for values, right in zip(found, values_of(theirs, reference, steps=LENGTH - 1), strict=True):
        assert values == pytest.approx(right, rel=1e-9)


@pytest.mark.parametrize(
    "cfg",
    [
        {"type": "torch.optim.lr_scheduler.LinearLR", "total_iters": 5},
        {"type": "LambdaLR", "lr_lambda": lambda step: 1 / (step + 1)},
    ],
    ids=lambda cfg: cfg["type"],
)
def test_a_schedule_of_torch_is_taken_by_its_name_or_path(cfg):
    ours, theirs = make_optimizer(), make_optimizer()
    arguments = {name: value for name, value in cfg.items() if name != "type"}
    name = cfg["type"].rpartition(".")[2]
    reference = getattr(torch.optim.lr_scheduler, name)(theirs, **arguments)
    steps = LENGTH - 1
    assert values_of(ours, make(ours, **cfg), steps=steps) == values_of(
        theirs, reference, steps=steps
    )


def test_a_cosine_is_right_to_the_last_of_a_million_steps():
    steps = 1_000_000
    optimizer = make_optimizer()
    scheduler = make(optimizer, type="CosineAnnealingLR", by_epoch=False, num_iters=steps)
    # Not a million steps: the course is the same from anywhere.
    for step in (1, steps // 2, steps - 2):
        group = optimizer.param_groups[0]
        group["lr"] = cosine(step - 1, steps)
        scheduler.load_state_dict({"count": step - 1, "scheduler": {}})
        scheduler.step()
        exact = math.cos(math.pi * step / (2 * steps)) ** 2
        assert group["lr"] == pytest.approx(exact, rel=1e-4 if step > steps - 9 else 1e-12)


def test_a_learning_rate_that_is_a_float32_tensor_follows_a_slow_schedule():
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
        pytest.skip("tensor learning rates need torch 2.4")
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([parameter], lr=torch.tensor(1.0))
    tensor = optimizer.param_groups[0]["lr"]
    # A step changes less than half of float32's last digit: from the tensor it would stand still.
    cfg = {"type": "LinearLR", "start_factor": 1.0, "end_factor": 0.0, "by_epoch": False}
    scheduler = make(optimizer, **cfg, num_iters=100_000_001)
    for _ in range(100):
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] is tensor
    assert float(tensor) == pytest.approx(1 - 1e-6, abs=6e-8)
    assert optimizer.param_groups[0]["scheduled_lr"] == pytest.approx(1 - 1e-6, rel=1e-12)


def test_momentum_is_the_first_beta_where_there_are_betas():
    optimizer = make_optimizer(torch.optim.Adam, betas=(0.8, 0.99))
    scheduler = make(optimizer, type="StepMomentum", step_size=1, gamma=0.5)
    scheduler.step()
    assert [group["betas"] for group in optimizer.param_groups] == [(0.4, 0.99)] * 2


def test_a_group_added_later_takes_part():
    optimizer = make_optimizer()
    scheduler = make(optimizer, type="StepLR", step_size=1, gamma=0.5)
    scheduler.step()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 8.0})
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.075, 4.0]


def test_a_schedule_by_epoch_is_converted_to_iterations():
    cfg = {"T_max": 4, "begin": 1, "end": 5, "type": "CosineAnnealingLR"}
    by_epoch, by_iter = make_optimizer(), make_optimizer()
    slow = make(by_epoch, **cfg)
    fast = make(by_iter, **cfg, convert_to_iter_based=True, num_epochs=5, num_iters=50)
    assert (fast.by_epoch, fast.begin, fast.end) == (False, 10, 50)
    every_tenth = values_of(by_iter, fast, steps=50)[::10]
    for values, right in zip(every_tenth, values_of(by_epoch, slow, steps=5), strict=True):
        assert values == pytest.approx(right, rel=1e-9)
    for name, value in {"step_size": 2, "milestones": [1, 2], "total_steps": 4}.items():
        kind = {"step_size": "Step", "milestones": "MultiStep", "total_steps": "OneCycle"}[name]
        top = {"eta_max": 1.0} if kind == "OneCycle" else {}
        optimizer, again = make_optimizer(), make_optimizer()
        options = {"type": f"{kind}LR", name: value, **top}
        converted = make(optimizer, **options, convert_to_iter_based=True, num_iters=80)
        scaled = [4 * one for one in value] if isinstance(value, list) else 4 * value
        written = make(again, **{**options, name: scaled}, by_epoch=False, num_iters=80)
        assert values_of(optimizer, converted) == values_of(again, written)


def test_a_run_by_iterations_goes_through_its_data_in_an_epoch(make_runner):
    recorded = RecordRates()
    runner = make_runner(
        train_cfg={"by_epoch": False, "max_iters": 14},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 1.0}},
        train_dataloader=loader_cfg(sampler={"type": "InfiniteSampler"}),
        param_scheduler=[
            {"type": "StepLR", "step_size": 1, "gamma": 0.5, "convert_to_iter_based": True},
            {"type": "StepLR", "step_size": 1},
        ],
        custom_hooks=[recorded],
        **NO_VALIDATION,
    )
    runner.train()
    assert recorded.rates == [1.0] * 6 + [0.5] * 6 + [0.25] * 2
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert "param_scheduler[1] counts epochs, and this run counts iterations" in log
    assert "param_scheduler[0] counts" not in log


PLATEAU = {"type": "ReduceOnPlateauLR", "patience": 1, "factor": 0.5}


def follow(scheduler, *metrics):
    values = []
    for value in metrics:
        scheduler.step()
        scheduler.follow({"loss": value})
        values.append(scheduler.optimizer.param_groups[0]["lr"])
    return values


def test_a_plateau_lowers_the_rate_as_torch_does():
    metrics = [3.0, 2.0, 2.0, 2.0, 1.9999, 2.5, 2.5, 2.5, float("nan"), 1.0, 1.0]
    for options in ({}, {"threshold": 0.5, "threshold_rule": "abs"}, {"cooldown": 2}):
        ours, theirs = make_optimizer(), make_optimizer()
        names = {"threshold_rule": "threshold_mode"}
        reference = torch.optim.lr_scheduler.ReduceLROnPlateau(
            theirs,
            patience=1,
            factor=0.5,
            **{names.get(key, key): value for key, value in options.items()},
        )
        found = follow(make(ours, **PLATEAU, **options), *metrics)
        for value, right in zip(metrics, found, strict=True):
            reference.step(value)
            assert theirs.param_groups[0]["lr"] == right


def test_a_run_lowers_the_rate_on_a_plateau(make_runner):
    recorded = RecordRates()
    make_runner(
        train_cfg={"max_epochs": 4},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 1.0}},
        val_evaluator=Scripted(values=[0.5, 0.5, 0.5, 0.5]),
        param_scheduler={
            "type": "ReduceOnPlateauLR",
            "monitor": "accuracy",
            "rule": "greater",
            "patience": 1,
        },
        custom_hooks=[recorded],
    ).train()
    assert recorded.rates == pytest.approx([1.0] * 18 + [0.1] * 6)


def test_a_run_names_a_metric_that_is_not_there(make_runner):
    runner = make_runner(param_scheduler={"type": "ReduceOnPlateauLR", "monitor": "los"})
    with pytest.raises(ConfigError, match=r"param_scheduler\.monitor: 'los'.*report 'accuracy'"):
        runner.train()


class Overflow(Hook):
    """Makes the gradients of one step overflow."""

    priority = "HIGHEST"

    def __init__(self, step):
        self.step = step

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        data_batch["inputs"] = data_batch["inputs"] * (
            float("inf") if batch_idx == self.step else 1
        )


def test_a_skipped_step_holds_the_schedule(make_runner):
    recorded = RecordRates()
    make_runner(
        train_cfg={"max_epochs": 1},
        train_dataloader=loader_cfg(sampler={"type": "DefaultSampler", "shuffle": False}),
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 1.0}, "max_skips": 3},
        param_scheduler={"type": "StepLR", "step_size": 1, "gamma": 0.5, "by_epoch": False},
        custom_hooks=[recorded, Overflow(2)],
        **NO_VALIDATION,
    ).train()
    exponents = [round(-math.log2(rate)) for rate in recorded.rates]
    assert exponents == [0, 1, 2, 2, 3, 4]


@pytest.mark.skipif(CPU_LOW_PRECISION != "float16", reason="torch 2.4 has float16 on the CPU")
def test_a_run_stopped_before_a_skip_is_known_holds_the_schedule_all_the_same(make_runner):
    recorded = RecordRates()
    for stop in (StopAfter(3), None):
        runner = make_runner(
            train_cfg={"max_epochs": 1},
            train_dataloader=loader_cfg(sampler={"type": "DefaultSampler", "shuffle": False}),
            optim_wrapper={
                "type": "AmpOptimWrapper",
                "dtype": "float16",
                "optimizer": {"type": "SGD", "lr": 1.0, "fused": True},
            },
            param_scheduler={"type": "StepLR", "step_size": 1, "gamma": 0.5, "by_epoch": False},
            custom_hooks=[recorded, Overflow(2), *filter(None, [stop])],
            resume=stop is None,
            **NO_VALIDATION,
        )
        with pytest.raises(Killed) if stop else nullcontext():
            runner.train()
    exponents = [round(-math.log2(rate)) for rate in recorded.rates]
    assert exponents == [0, 1, 2, 3, 3, 4]


@pytest.mark.parametrize(
    ("cfg", "error", "message"),
    [
        ({"type": "PolyLr"}, ComponentNotFoundError, r"named 'PolyLr'.*'PolyLR'"),
        ({"type": "PolyParamScheduler"}, ConfigError, r"^param_scheduler: .*param_name"),
        (
            {"type": "PolyParamScheduler", "param_name": "decay"},
            ConfigError,
            r"param_scheduler: .*'decay' is to be scheduled.*SGD have no such.*weight_decay",
        ),
        (
            {"type": "PolyLR", "powr": 1},
            ConfigError,
            r"\.powr: unknown argument of PolyLR.*'power'",
        ),
        ({"type": "LinearLR", "start_factor": 2}, ConfigError, r"start_factor=2 was.*from 0 to 1"),
        ({"type": "StepLR", "step_size": 0}, ConfigError, r"step_size=0 was given"),
        (
            {"type": "CosineAnnealingLR", "eta_min": 0, "eta_min_ratio": 0.1},
            ConfigError,
            r"eta_min=0 and eta_min_ratio=0.1 were given",
        ),
        (
            {"type": "CosineRestartLR", "periods": [1, 2], "restart_weights": [1, 2, 3]},
            ConfigError,
            r"2 periods and 3 restart_weights",
        ),
        (
            {"type": "LambdaLR", "lr_lambda": len, "convert_to_iter_based": True},
            ConfigError,
            r"convert_to_iter_based: 'LambdaLR' cannot be converted",
        ),
        (
            {"type": "StepLR", "step_size": 1, "begin": 0.5},
            ConfigError,
            r"\.begin: an integer.*got 0\.5",
        ),
    ],
    ids=lambda case: case.get("type") if isinstance(case, dict) else "",
)
def test_wrong_schedules_say_what_there_is(cfg, error, message):
    with pytest.raises(error, match=message):
        make(make_optimizer(), **cfg)


# Cosines with restarts, alone and beside other schedules of the same setting.
RESTARTS = {"type": "CosineRestartLR", "by_epoch": False, "periods": [6, 6], "eta_min": 0.05}
DECAY = {"type": "MultiStepLR", "by_epoch": False, "milestones": [4], "gamma": 0.1}
WARM_UP = {"type": "LinearLR", "by_epoch": False, "start_factor": 0.1, "end": 5}


def rates_of(*cfgs, steps=16):
    optimizer = make_optimizer()
    schedulers = [make(optimizer, **cfg, num_iters=100) for cfg in cfgs]
    return [rate for rate, _ in values_of(optimizer, *schedulers, steps=steps)]


def course(step, *, length=6, floor=0.05):
    return cosine(step % length, length, floor)


@pytest.mark.parametrize("order", [1, -1], ids=["first", "last"])
def test_a_restart_sets_the_base_whatever_others_have_multiplied(order):
    rates = rates_of(*[RESTARTS, DECAY][::order])
    assert rates[:4] == pytest.approx([course(step) for step in range(4)])
    # As CosineAnnealingLR does: the cosine goes on from the lowered value to its floor.
    annealing = {**RESTARTS, "type": "CosineAnnealingLR", "T_max": 6}
    del annealing["periods"]
    assert rates[:6] == pytest.approx(rates_of(*[annealing, DECAY][::order])[:6])
    assert rates[6:12] == pytest.approx([course(step) for step in range(6)])
    assert rates[12:] == [rates[11]] * 4


@pytest.mark.parametrize("order", [1, -1], ids=["first", "last"])
def test_a_warm_up_acts_beside_the_first_period(order):
    restarts = {**RESTARTS, "eta_min": 0}
    rates = rates_of(*[WARM_UP, restarts][::order], steps=12)
    expected = [(0.1 + 0.9 * min(step / 4, 1)) * course(step, floor=0) for step in range(12)]
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize(
    ("cfg", "by_epoch"),
    [({"type": "CosineAnnealingLR"}, True), ({"type": "OneCycleLR", "eta_max": 1.0}, False)],
)
def test_the_value_stays_where_a_run_is_resumed_for_longer(make_runner, cfg, by_epoch):
    recorded = RecordRates()
    for epochs in (2, 4):
        runner = make_runner(
            train_cfg={"max_epochs": epochs},
            param_scheduler={**cfg, "by_epoch": by_epoch},
            custom_hooks=[recorded],
            resume=epochs == 4,
            **NO_VALIDATION,
        )
        runner.train()
    half = len(recorded.rates) // 2
    assert recorded.rates[half:] == [recorded.rates[half - 1]] * half
    (log,) = runner.log_dir.glob("*.log")
    assert f"its course ended at {2 if by_epoch else half}, and the run now at" in log.read_text()
