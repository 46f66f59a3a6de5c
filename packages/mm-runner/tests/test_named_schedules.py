"""Schedule classes: used in scripts, in configs, and as base classes."""

import pytest
import torch
from test_resume_midway import StopAfter
from toy import NO_VALIDATION, Killed, RecordRates

import mm_runner.optim
from mm_runner import ConfigError
from mm_runner.errors import MMRunnerError
from mm_runner.optim import (
    INF,
    CosineAnnealingLR,
    CosineAnnealingParamScheduler,
    LRSchedulerMixin,
    MultiStepLR,
    OptimWrapper,
    ReduceOnPlateauLR,
    StepLR,
    _ParamScheduler,
    build_param_schedulers,
)
from mm_runner.optim.schedules import FAMILIES
from mm_runner.registry import PARAM_SCHEDULERS


class QuadraticWarmup(_ParamScheduler):
    def __init__(self, optimizer, param_name, begin=0, end=INF, **options):
        self.total = end - begin
        self.seen = 0
        super().__init__(optimizer, param_name, begin=begin, end=end, **options)

    def _get_value(self):
        self.seen += 1
        fraction = ((self.last_step + 1) / self.total) ** 2
        return [base * fraction for base in self.base_values]


class QuadraticWarmupLR(LRSchedulerMixin, QuadraticWarmup):
    pass


class HalfCosineLR(CosineAnnealingLR):
    def _get_value(self):
        return [group[self.param_name] / 2 for group in self.optimizer.param_groups]


@pytest.fixture
def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)


def rates_of(optimizer, schedule, steps):
    rates = []
    for _ in range(steps):
        rates += schedule.get_last_value()
        optimizer.step()
        schedule.step()
    return rates


def of_config(optimizer, cfg, **run):
    run = {"num_epochs": 12, "num_iters": 36, **run}
    return build_param_schedulers(OptimWrapper(optimizer), cfg, **run)[0]


def test_every_family_is_a_class_that_a_subclass_may_derive_from():
    for name in FAMILIES:
        kind = getattr(mm_runner.optim, name)
        assert issubclass(kind, _ParamScheduler)
        assert kind is getattr(mm_runner.optim, name)
    assert issubclass(CosineAnnealingLR, CosineAnnealingParamScheduler)


def test_a_class_has_the_values_of_its_config_and_resumes(optimizer):
    cfg = {"type": CosineAnnealingLR, "T_max": 9, "eta_min": 0.1, "end": 9}
    expected = rates_of(optimizer, of_config(optimizer, cfg), 12)
    for stop in (0, 4, 11):
        optimizer.param_groups[0].update(lr=1.0)
        schedule = CosineAnnealingLR(OptimWrapper(optimizer), 9, eta_min=0.1, end=9)
        assert rates_of(optimizer, schedule, stop) == expected[:stop]
        again = CosineAnnealingLR(optimizer, 9, eta_min=0.1, end=9)
        again.load_state_dict(schedule.state_dict())
        optimizer.param_groups[0].update(lr=expected[stop])
        assert rates_of(optimizer, again, 12 - stop) == expected[stop:]


def test_epochs_are_converted_to_iterations(optimizer):
    schedule = MultiStepLR.build_iter_from_epoch(
        optimizer, milestones=[1, 2], gamma=0.5, begin=1, epoch_length=3
    )
    assert not schedule.by_epoch
    assert rates_of(optimizer, schedule, 10) == [1.0] * 6 + [0.5] * 3 + [0.25]


def test_a_plateau_steps_with_metrics(optimizer):
    schedule = ReduceOnPlateauLR(optimizer, factor=0.5, patience=0)
    for loss in (1.0, torch.tensor([1.0]), 0.5):
        schedule.step({"loss": loss})
    assert schedule.get_last_value() == [0.5]


def test_arguments_of_a_class_may_be_changed(optimizer):
    schedule = StepLR(optimizer, 3, gamma=0.5)
    schedule.gamma = 0.25
    assert rates_of(optimizer, schedule, 4) == [1.0, 1.0, 1.0, 0.25]


def test_a_schedule_of_torch_keeps_what_it_changes_besides_the_rate():
    def build():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0, momentum=0.9)
        cfg = {"type": "torch.optim.lr_scheduler.OneCycleLR", "max_lr": 1.0, "total_steps": 12}
        return optimizer, of_config(optimizer, cfg)

    optimizer, schedule = build()
    rates_of(optimizer, schedule, 4)
    again, resumed = build()
    again.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    assert again.param_groups[0]["momentum"] == optimizer.param_groups[0]["momentum"]
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    with pytest.raises(
        MMRunnerError, match="'ReduceOnPlateauLR'"
    ):  # torch 1.13 has no such schedule
        of_config(optimizer, {"type": "ReduceLROnPlateau"})


def test_last_step_needs_the_initial_values(optimizer):
    with pytest.raises(ConfigError, match="no 'initial_lr'"):
        StepLR(optimizer, 2, last_step=3)
    optimizer.param_groups[0]["initial_lr"] = 1.0
    assert rates_of(optimizer, StepLR(optimizer, 3, gamma=0.5, last_step=1), 3) == [1.0, 0.5, 0.5]


def test_a_subclass_with_values_of_its_own_acts_in_a_run(optimizer, monkeypatch):
    monkeypatch.setitem(PARAM_SCHEDULERS._registered, "QuadraticWarmupLR", QuadraticWarmupLR)
    cfg = {"type": "QuadraticWarmupLR", "end": 2, "convert_to_iter_based": False}
    assert rates_of(optimizer, of_config(optimizer, cfg), 3) == [0.25, 1.0, 1.0]
    schedule = of_config(optimizer, {"type": HalfCosineLR})
    assert (schedule.end, schedule.where) == (12, "param_scheduler")
    with pytest.raises(ConfigError, match=r"^param_scheduler: .*begin=3 and end=3"):
        of_config(optimizer, {"type": HalfCosineLR, "begin": 3, "end": 3})
    with pytest.raises(ConfigError, match=r"^param_scheduler: .* argument 'T_mx'"):
        of_config(optimizer, {"type": HalfCosineLR, "T_mx": 3})


def test_a_run_with_a_subclass_resumes_exactly(make_runner):
    cfg = {"type": QuadraticWarmupLR, "end": 12, "by_epoch": False}

    def train(*hooks, **more):
        rates = RecordRates()
        runner = make_runner(
            train_cfg={"max_epochs": 3},
            optim_wrapper={"optimizer": {"type": "SGD", "lr": 1.0}},
            param_scheduler=cfg,
            custom_hooks=[rates, *hooks],
            **NO_VALIDATION,
            **more,
        )
        try:
            runner.train()
        except Killed:
            return rates.rates, None
        return rates.rates, runner.param_schedulers[0].seen

    expected, seen = train()
    assert expected[:12] == [pytest.approx(((step + 1) / 12) ** 2) for step in range(12)]
    before, _ = train(StopAfter(8))
    after, seen_again = train(resume=True)
    assert [*before, *after] == expected
    assert seen_again == seen
