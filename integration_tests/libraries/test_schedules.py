"""Schedules as classes have the values of MMEngine's own classes."""

import warnings

import pytest
import torch

import mm_runner.optim as ours
from mm_runner.optim.schedules import FAMILIES

with warnings.catch_warnings():  # of torch, which MMEngine uses as it was
    warnings.simplefilter("ignore")
    import mmengine.optim.scheduler as theirs
    from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
    from mmengine.optim.scheduler.param_scheduler import _ParamScheduler

ARGUMENTS = {
    "Constant": {"factor": 0.2, "end": 12},
    "CosineAnnealing": {"T_max": 20, "eta_min": 0.01, "end": 20},
    "CosineRestart": {"periods": [10, 20], "restart_weights": [1, 0.5], "eta_min": 0.01},
    "Exponential": {"gamma": 0.9, "begin": 3},
    "Linear": {"start_factor": 0.1, "begin": 2, "end": 12},
    "MultiStep": {"milestones": [3, 7, 7], "gamma": 0.5},
    "OneCycle": {"eta_max": 2.0, "total_steps": 31, "three_phase": True},
    "Poly": {"power": 0.9, "eta_min": 0.05, "end": 25},
    "ReduceOnPlateau": {"patience": 2, "cooldown": 1, "factor": 0.5},
    "Step": {"step_size": 4, "gamma": 0.5},
}


def values(library, name, kind, arguments):
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in (1.0, 0.3)]
    optimizer = kind(groups, lr=1.0, weight_decay=0.2)
    setting = "lr" if name.startswith("OneCycle") else "weight_decay"
    options = {"param_name": setting} if name.endswith("ParamScheduler") else {}
    if name.startswith("ReduceOnPlateau"):
        options["monitor"] = "loss"
    schedule = getattr(library, name)(optimizer, **options, **arguments)
    found = []
    for step in range(30):
        groups = optimizer.param_groups
        one = [[group.get(key) for group in groups] for key in ("lr", "betas", "weight_decay")]
        found += [*one[0], *one[2], *(value[0] for value in one[1] if value)]
        optimizer.step()
        schedule.step()
        if schedule.__class__.__name__.startswith("ReduceOnPlateau"):
            schedule.step({"loss": 1 / min(step + 1, 4)})
    return found


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("name", FAMILIES)
def test_values_are_those_of_mmengine(name, kind):
    if name.endswith("Momentum") and kind is torch.optim.SGD:
        kind = lambda params, **options: torch.optim.SGD(params, momentum=0.9, **options)  # noqa: E731
    family = FAMILIES[name][0].__name__
    expected = values(theirs, name, kind, ARGUMENTS[family])
    assert values(ours, name, kind, ARGUMENTS[family]) == pytest.approx(expected, rel=1e-12)


def test_there_is_every_class_of_mmengine():
    names = [name for name in theirs.__all__ if name != "_ParamScheduler"]
    assert sorted(names) == sorted(FAMILIES)


class Quadratic(LRSchedulerMixin, _ParamScheduler):
    """A library's own schedule, which reads its window."""

    @classmethod
    def build_iter_from_epoch(cls, optimizer, begin, end, epoch_length):
        return cls(optimizer, begin * epoch_length, end * epoch_length, by_epoch=False)

    def _get_value(self):
        share = (self.last_step + 1) / (self.end - self.begin)
        return [base * share**2 for base in self.base_values]


def test_a_schedule_of_a_library_keeps_to_its_window():
    def rates(build):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        (schedule,), found = build(optimizer), []
        for _ in range(12):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return found

    def in_a_run(optimizer):
        epochs = {"begin": 1, "end": 3, "convert_to_iter_based": True}
        wrapper, run = ours.OptimWrapper(optimizer), {"num_epochs": 4, "num_iters": 12}
        return ours.build_param_schedulers(wrapper, [{"type": Quadratic, **epochs}], **run)

    expected = rates(lambda optimizer: [Quadratic(optimizer, begin=3, end=9, by_epoch=False)])
    assert rates(in_a_run) == expected
    assert len(set(expected)) == 6
